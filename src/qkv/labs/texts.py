"""Real text that is on every machine that runs qkv: what Python's own `help()` says about the language.

Half a million characters of English prose and tables by the Python Software Foundation, read where Python keeps them;
nothing has to be downloaded, and nothing is copied. Which words it has depends a little on the version of Python.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
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
FRAMES = (
    "this film is {}", "what a {} movie", "the acting was {}", "i found the story {}", "a truly {} film",
    "the plot is {}",
    "the whole thing was {} from start to end", "it was a {} experience", "the director made a {} movie", "so {} !",
)  # fmt: skip


def opinions(words: slice) -> list[dict[str, str]]:
    """Short opinions with some of the words, each in every frame: what is praised and what is blamed. Words that were
    not learnt with a label can only be judged by one who has met them elsewhere."""
    labelled = (("praise", PRAISE[words]), ("blame", BLAME[words]))
    return [
        {"text": frame.format(word), "label": label} for frame in FRAMES for label, some in labelled for word in some
    ]


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
