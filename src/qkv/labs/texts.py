"""Real text that is on every machine that runs qkv: what Python's own `help()` says about the language.

Half a million characters of English prose and tables by the Python Software Foundation, read where Python keeps them;
nothing has to be downloaded, and nothing is copied. Which words it has depends a little on the version of Python.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pydoc_data import topics

SHORTEST, LONGEST = 60, 2000  # characters of a paragraph that is prose


@cache
def paragraphs() -> tuple[str, ...]:
    """Prose: paragraphs without code, each on one line, in the order of the topics, none twice."""
    found = dict.fromkeys(paragraph for name in sorted(topics.topics) for paragraph in _of(topics.topics[name]))
    return tuple(found)


def _of(text: str) -> Iterator[str]:
    for block in re.split(r"\n\s*\n", text):
        line = " ".join(block.split())
        is_prose = line[:1].isupper() and line[-1:] in ".:;)" and "::=" not in line and ">>>" not in line
        if is_prose and SHORTEST <= len(line) <= LONGEST:
            yield line


@cache
def documents() -> tuple[str, ...]:
    """The topics whole, as prose: some 70 texts of many paragraphs."""
    joined = (" ".join(dict.fromkeys(_of(topics.topics[name]))) for name in sorted(topics.topics))
    return tuple(text for text in joined if len(text) > LONGEST)


PRAISE = (
    "wonderful", "great", "brilliant", "excellent", "superb", "fantastic", "amazing", "beautiful", "delightful",
    "charming", "perfect", "moving", "clever", "hilarious", "touching", "enjoyable", "terrific", "outstanding",
    "impressive", "marvelous", "gorgeous", "refreshing", "captivating", "powerful", "memorable", "fascinating",
    "remarkable", "lovely", "entertaining", "splendid",
)  # fmt: skip
BLAME = (
    "awful", "terrible", "horrible", "boring", "dull", "stupid", "bad", "poor", "ridiculous", "lame", "pathetic",
    "annoying", "disappointing", "painful", "tedious", "dreadful", "mediocre", "weak", "silly", "ugly", "bland",
    "predictable", "pointless", "unwatchable", "clumsy", "forgettable", "embarrassing", "lousy", "disgusting",
    "worthless",
)  # fmt: skip
PEOPLE = (
    "actor", "actress", "director", "boy", "girl", "man", "woman", "mother", "father", "doctor", "brother", "sister",
    "friend", "wife", "husband", "writer", "teacher", "hero", "villain", "kid", "detective", "soldier", "guy", "lady",
    "daughter",
)  # fmt: skip
THINGS = (
    "film", "movie", "plot", "story", "music", "scene", "script", "ending", "book", "camera", "house", "car",
    "dialogue", "soundtrack", "series", "show", "song", "idea", "picture", "version", "budget", "joke", "effect",
    "sequence", "episode",
)  # fmt: skip
MENTIONS = (
    "i really like the {}", "the {} was good", "this is about a {}", "there is a {} in it", "we see the {} again",
    "i remember the {} very well", "the {} is not bad at all", "you will love this {}", "that {} again !", "what a {}",
)  # fmt: skip
FRAMES = (
    "this film is {}", "what a {} movie", "the acting was {}", "i found the story {}", "a truly {} film",
    "the plot is {}",
    "the whole thing was {} from start to end", "it was a {} experience", "the director made a {} movie", "so {} !",
)  # fmt: skip


def opinions() -> list[dict[str, str]]:
    """Short opinions: what is praised and what is blamed. Words that were not learnt with a label can only be judged by
    one who has met them elsewhere."""
    return _framed(FRAMES, praise=PRAISE, blame=BLAME)


def mentions() -> list[dict[str, str]]:
    """Short sentences about people and about things: which is it?"""
    return _framed(MENTIONS, person=PEOPLE, thing=THINGS)


def _framed(frames: Sequence[str], **labelled: Sequence[str]) -> list[dict[str, str]]:
    """Every word in every frame, with its label."""
    rows = itertools.product(frames, ((label, word) for label, words in labelled.items() for word in words))
    return [{"text": frame.format(word), "label": label} for frame, (label, word) in rows]


def reviews(rows: int, seed: int, sentences: int = 5) -> list[dict[str, str]]:
    """Texts of so many opinions that do not agree: what most of them say is the label, so all have to be read."""
    dice, made = random.Random(seed), []
    for _ in range(rows):
        praise, most = dice.random() < 0.5, sentences // 2 + 1
        sides = [praise] * most + [not praise] * (sentences - most)
        dice.shuffle(sides)
        said = (dice.choice(FRAMES).format(dice.choice(PRAISE if side else BLAME)) for side in sides)
        made.append({"text": " . ".join(said) + " .", "label": "praise" if praise else "blame"})
    return made


TOPICS = {
    "sea": ("ship", "wave", "sailor", "harbor", "storm", "fish", "anchor", "island", "tide", "captain"),
    "kitchen": ("bread", "oven", "butter", "knife", "soup", "salt", "plate", "cook", "flour", "pan"),
    "school": ("teacher", "pupil", "lesson", "desk", "chalk", "exam", "class", "book", "homework", "bell"),
    "farm": ("cow", "barn", "wheat", "tractor", "pig", "field", "farmer", "horse", "hay", "fence"),
    "war": ("soldier", "battle", "general", "sword", "army", "enemy", "castle", "siege", "shield", "king"),
    "space": ("rocket", "planet", "star", "moon", "orbit", "comet", "galaxy", "astronaut", "telescope", "crater"),
    "hospital": ("doctor", "nurse", "patient", "fever", "pill", "surgeon", "bandage", "wound", "cure", "ward"),
    "music": ("piano", "violin", "singer", "drum", "melody", "concert", "flute", "choir", "rhythm", "opera"),
    "city": ("street", "taxi", "tower", "traffic", "market", "bridge", "subway", "crowd", "mayor", "office"),
    "forest": ("tree", "wolf", "bear", "leaf", "moss", "owl", "deer", "path", "branch", "hunter"),
    "money": ("bank", "coin", "loan", "debt", "price", "gold", "tax", "trade", "profit", "merchant"),
    "winter": ("snow", "ice", "sled", "frost", "glove", "skate", "coat", "wind", "blizzard", "icicle"),
}
SCENES = ("the {} and the {} near the {} .", "a {} with a {} and a {} .", "there was a {} , a {} and one more {} .")


def scene(dice: random.Random, topic: str, words: slice = slice(None)) -> str:
    """A sentence about three things of one topic: who knows which words keep company knows the topic."""
    return dice.choice(SCENES).format(*dice.sample(TOPICS[topic][words], 3))


def stories(count: int, seed: int, sentences: int = 8) -> list[str]:
    """Texts of so many scenes, each text about one topic."""
    dice = random.Random(seed)
    topics = (dice.choice(list(TOPICS)) for _ in range(count))
    return [" ".join(scene(dice, topic) for _ in range(sentences)) for topic in topics]
