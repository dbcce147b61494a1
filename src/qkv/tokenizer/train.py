"""Training a tokenizer on texts: five kinds with the same special tokens and the same frame around a text.

All kinds count words first and learn from the sorted counts. The same texts therefore give the same bytes, in any order
and on any number of threads. Two trainers of `tokenizers` cannot promise that: they number pieces (WordPiece) or add up
logarithms (Unigram) in the order of a hash table that is different each time. Only its plain BPE trainer is used here.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from zlib import crc32

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Inner
from tokenizers.decoders import Decoder
from tokenizers.models import Model
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer as Cutter

from qkv.schema import UserError, nearest
from qkv.tokenizer.tokenizer import Tokenizer, check_text, guarded

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")  # ids 0 to 4
AROUND = {"both": "[CLS] $A [SEP]", "begin": "[CLS] $A", "end": "$A [SEP]"}  # a text to judge, to go on with, a source
KINDS = ("wordpiece", "bpe", "unigram", "characters", "bytes")
BYTES = 256
SMALLEST = {"bpe": BYTES + len(SPECIALS)}  # tokenizer.vocab_size at least, where it is not 16
LONGEST = 64  # characters of a word; what is longer is learnt and read in pieces, so that no word can take for ever
UNIT = re.compile(r"\s{0,64}\S{1,4096}|\s{1,64}")  # blanks and what follows them: no word of any kind goes across
# How GPT-2 cuts text into words: Radford et al. 2019, with an upper bound on the length of each.
WORDS = Regex(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}{1,64}| ?\p{N}{1,64}| ?[^\s\p{L}\p{N}]{1,64}|\s{1,64}(?!\S)|\s{1,64}")
ANYTHING = Regex(r"[\s\S]{1,64}")
BLANK = "\u2581"  # what stands for a blank in a unigram piece
START = "\ue000"  # marks the beginning of a word while WordPiece counts; BERT's normaliser lets none through
STAND_INS = 0xF0000  # first of 131,000 characters that, like START, mean nothing and are not let through
NOTHING = "no text to train a tokenizer on"
CANNOT = "tokenizers cannot be trained on these texts"
FLUSH = 1_000_000  # different units to hold before they are cut into words
LESSONS = 2_000_000  # characters of different words to learn from
REPEATS = 10_000  # times a word is written into one line for the trainer
LONGEST_PIECE = 16  # characters of a unigram piece, as SentencePiece has it
SEEDS = 4  # unigram starts from so many times the pieces it ends with
SHRINK = 0.75  # share of the pieces that one round of unigram keeps


def train_tokenizer(
    texts: Iterable[str], *, kind: str, vocab_size: int, lowercase: bool, around: str = "both"
) -> Tokenizer:
    """A tokenizer of that kind with at most `vocab_size` ids, learnt from the texts; they are read once, one by one.
    `around` says what stands around a text, by AROUND.

    bpe and bytes give every text back exactly, unless `lowercase` changed it. characters and bytes learn no pieces, so
    that they may have fewer ids than asked for; bytes always has 261.
    """
    if kind not in KINDS:
        raise UserError(f"tokenizer.kind = {kind!r}: {nearest(kind, KINDS)}")
    smallest = SMALLEST.get(kind, 16)
    if vocab_size < smallest:
        raise UserError(f"tokenizer.vocab_size = {vocab_size}: kind = {kind!r} needs at least {smallest}")
    normalizer, cutter, decoder = _pipeline(kind, lowercase)
    if kind == "bytes":
        if not any(text.strip() for text in texts):
            raise UserError(NOTHING)
        model: Model = models.BPE(_numbered(_byte_characters()), [])
    else:
        counts = _counted(texts, kind, normalizer, cutter)
        model = LEARNERS[kind](counts, vocab_size)
    return Tokenizer(_assembled(model, normalizer, cutter, decoder, around))


def _pipeline(kind: str, lowercase: bool) -> tuple[Normalizer | None, Cutter, Decoder]:
    """What happens to a text before its pieces are looked up, and after, when ids become text again."""
    cutter: Cutter
    if kind == "wordpiece":
        return normalizers.BertNormalizer(lowercase=lowercase), pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    # The same reading of `lowercase` as BERT's, but nothing else; NFC puts Korean letters together again.
    plain = normalizers.BertNormalizer(clean_text=False, handle_chinese_chars=False, strip_accents=True, lowercase=True)
    normalizer = normalizers.Sequence([plain, normalizers.NFC()]) if lowercase else None
    if kind == "characters":
        return normalizer, pre_tokenizers.Split(ANYTHING, "isolated"), decoders.Fuse()
    cutter = pre_tokenizers.Split(ANYTHING if kind == "bytes" else WORDS, "isolated")
    if kind == "unigram":
        blanks = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        return normalizer, pre_tokenizers.Sequence([cutter, blanks]), decoders.Metaspace(prepend_scheme="first")
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return normalizer, pre_tokenizers.Sequence([cutter, as_bytes]), decoders.ByteLevel()


def _assembled(model: Model, normalizer: Normalizer | None, cutter: Cutter, decoder: Decoder, around: str) -> Inner:
    inner = Inner(model)
    if normalizer is not None:
        inner.normalizer = normalizer
    inner.pre_tokenizer, inner.decoder = cutter, decoder
    inner.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIALS])
    inner.post_processor = processors.TemplateProcessing(
        single=AROUND[around],
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, SPECIALS.index(token)) for token in ("[CLS]", "[SEP]")],
    )
    return inner


def _counted(texts: Iterable[str], kind: str, normalizer: Normalizer | None, cutter: Cutter) -> Counter[str]:
    """How often each word is in the texts (each character, for characters), as the pieces will be looked up in it."""
    units: Counter[str] = Counter()
    words: Counter[str] = Counter()
    some = False

    def flush() -> None:
        for unit, count in units.items():
            for word in _words(unit if normalizer is None else normalizer.normalize_str(unit), kind, cutter):
                words[word] += count
        units.clear()

    for number, text in enumerate(texts, 1):
        check_text(text, number)
        some = some or bool(text.strip())
        units.update(UNIT.findall(f" {text}" if kind == "unigram" else text))  # it gives the first word a blank, too
        if len(units) > FLUSH:
            guarded(flush, CANNOT)
    guarded(flush, CANNOT)
    if not words or not some:
        raise UserError(NOTHING)
    return words


def _words(unit: str, kind: str, cutter: Cutter) -> Iterable[str]:
    if kind == "characters":
        return unit
    if kind == "unigram":
        return [BLANK.join(unit[start:end].split(" ")) for _, (start, end) in cutter.pre_tokenize_str(unit)]
    found = [word for word, _ in cutter.pre_tokenize_str(unit)]
    if kind == "wordpiece":
        marked = [START + word for word in found]
        return [word[n : n + LONGEST] for word in marked for n in range(0, len(word), LONGEST)]
    return found


def _wordpiece(words: Mapping[str, int], vocab_size: int) -> Model:
    """Schuster and Nakajima 2012, as BERT has it: a piece inside a word begins with ##, and the longest piece wins.

    Learnt as BPE over words whose first letter is replaced by a stand-in: a piece with one can begin a word.
    """
    room = vocab_size - len(SPECIALS)
    forms = {char: (char,) if _stands_alone(char) else (char, f"##{char}") for char in _characters_of(words)}
    kept = set(_fitting(forms, room // 2))  # characters take half of the vocabulary at most; the rarest give way
    first = {char: chr(STAND_INS + n) for n, char in enumerate(sorted(kept))}
    letter = {stand_in: char for char, stand_in in first.items()}
    known = _lessons(words, {*kept, START})
    learnt = _pieces({first[w[1]] + w[2:] if w[0] == START else w: n for w, n in known.items()}, room)
    named = [letter[piece[0]] + piece[1:] if piece[0] in letter else f"##{piece}" for piece in learnt]
    alphabet = [*sorted(kept), *(f"##{char}" for char in sorted(kept) if len(forms[char]) == 2)]
    pieces = [*alphabet, *named][:room]
    rare = {char: form for char, form in forms.items() if char not in kept}
    for char in _fitting(rare, room - len(pieces)):  # where pieces leave room, they come in after all
        pieces += rare[char]
    return models.WordPiece(_numbered(pieces), unk_token="[UNK]", max_input_chars_per_word=100)


def _fitting(forms: Mapping[str, tuple[str, ...]], room: int) -> Iterator[str]:
    """The first characters, all forms of which fit."""
    for char, form in forms.items():
        room -= len(form)
        if room < 0:
            return
        yield char


def _bpe(words: Mapping[str, int], vocab_size: int) -> Model:
    """Byte pair encoding over bytes: Sennrich et al. 2016, Radford et al. 2019."""
    known = _byte_characters()
    lessons = _lessons(words, set(known))
    return _merged(lessons, vocab_size, special_tokens=list(SPECIALS), initial_alphabet=known).model


def _characters(counts: Mapping[str, int], vocab_size: int) -> Model:
    kept = _characters_of(counts)[: vocab_size - len(SPECIALS)]
    return models.BPE(_numbered(kept), [], unk_token="[UNK]")


def _unigram(words: Mapping[str, int], vocab_size: int) -> Model:
    """Kudo 2018: pieces with probabilities; a word is cut where the product is largest.

    Starts from the pieces BPE finds, then by turns counts which are used and drops those that are missed least. Counts
    are of the best cut of each word only, not of all cuts by weight: whole numbers, whose sum knows no order.
    """
    room = vocab_size - len(SPECIALS)
    characters = _characters_of(words)
    kept = set(characters[: room // 2])
    known = _lessons(words, kept)
    seeds = [*_pieces(known, SEEDS * room, max_token_length=LONGEST_PIECE), *sorted(kept)]
    scores = {piece: -math.log(rank) for rank, piece in enumerate(seeds, 2)}
    while True:
        counts = _used(known, scores)
        total = max(1, sum(counts.values()))
        used = [piece for piece in scores if counts[piece] or piece in kept]
        scores = {piece: round(math.log(max(counts[piece], 0.5) / total), 6) for piece in used}
        if len(scores) <= room:
            break
        scores = _shrunk(scores, counts, kept, max(room, int(SHRINK * len(scores))))
    rare = characters[room // 2 :][: room - len(scores)]  # where pieces leave room, they come in after all
    scores.update(dict.fromkeys(rare, round(math.log(0.5 / total), 6)))
    ranked = sorted(scores.items(), key=lambda one: (-one[1], one[0]))
    return models.Unigram([*((token, 0.0) for token in SPECIALS), *ranked], unk_id=SPECIALS.index("[UNK]"))


def _used(words: Mapping[str, int], scores: Mapping[str, float]) -> Counter[str]:
    """How often each piece is used in the best cut of all words."""
    pieces = list(scores)
    inner = Inner(models.Unigram([("[UNK]", 0.0), *scores.items()], unk_id=0))
    counts: Counter[str] = Counter()
    for some in _batches(list(words), 10_000):
        for word, made in zip(some, inner.encode_batch_fast(some), strict=True):
            for number in made.ids:
                counts[pieces[number - 1]] += words[word]
    return counts


def _shrunk(scores: Mapping[str, float], counts: Counter[str], kept: set[str], size: int) -> dict[str, float]:
    """Without the pieces whose loss makes the words least improbable. Single characters stay."""
    loss = {p: counts[p] * (score - _without(p, scores)) for p, score in scores.items() if p not in kept}
    best = sorted(loss, key=lambda piece: (-loss[piece], piece))[: size - len(kept)]
    return {piece: scores[piece] for piece in (*best, *sorted(kept))}


def _without(piece: str, scores: Mapping[str, float]) -> float:
    """Score of a piece's best cut into others."""
    best = [0.0]
    for end in range(1, len(piece) + 1):
        starts = range(1 if end == len(piece) else 0, end)
        best.append(max(best[start] + scores.get(piece[start:end], -math.inf) for start in starts))
    return best[-1]


def _merged(words: Mapping[str, int], size: int, **options: Any) -> Inner:
    """A BPE model of so many tokens, learnt by `tokenizers` from words written out as often as they were counted."""
    inner = Inner(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.CharDelimiterSplit(" ")
    trainer = trainers.BpeTrainer(vocab_size=size, min_frequency=2, show_progress=False, **options)
    guarded(lambda: inner.train_from_iterator(_lines(words), trainer), CANNOT)
    return inner


def _pieces(words: Mapping[str, int], number: int, **options: Any) -> list[str]:
    """Up to so many pieces of two characters or more, the first learnt first."""
    single = {char for word in words for char in word}
    vocabulary = _merged(words, number + len(single), **options).get_vocab()
    return [piece for piece in sorted(vocabulary, key=vocabulary.__getitem__) if piece not in single]


def _lines(words: Mapping[str, int]) -> Iterator[str]:
    line: list[str] = []
    for word, count in sorted(words.items()):
        for start in range(0, count, REPEATS):
            line += [word] * min(REPEATS, count - start)
            if len(line) >= REPEATS:
                yield " ".join(line)
                line = []
    yield " ".join(line)


def _characters_of(words: Mapping[str, int]) -> list[str]:
    """The characters of the words, the most frequent first."""
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for char in word:
            counts[char] += count
    counts.pop(START, None)
    return sorted(counts, key=lambda char: (-counts[char], char))


def _lessons(words: Mapping[str, int], kept: set[str]) -> dict[str, int]:
    """The words to learn from: those written in these characters, the most frequent first. There is a limit to how much
    is learnt from, since time grows with it and rare words teach little; among words as rare, chance decides."""
    chosen: dict[str, int] = {}
    left = LESSONS
    for word, count in sorted(words.items(), key=lambda one: (-one[1], crc32(one[0].encode()), one[0])):
        if kept.issuperset(word):
            left -= len(word)
            if left < 0 and chosen:
                break
            chosen[word] = count
    return chosen


def _stands_alone(char: str) -> bool:
    """Whether BERT makes this character a word of its own: punctuation, Chinese."""
    spaced = normalizers.BertNormalizer(lowercase=False).normalize_str(f"x{char}")
    return len(pre_tokenizers.BertPreTokenizer().pre_tokenize_str(spaced)) > 1


def _numbered(tokens: Iterable[str]) -> dict[str, int]:
    return {token: number for number, token in enumerate((*SPECIALS, *tokens))}


def _byte_characters() -> list[str]:
    """The printable character that stands for each byte in a tokenizer.json, as GPT-2 has it."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = iter(range(BYTES, 2 * BYTES))
    return [chr(byte if byte in printable else next(spare)) for byte in range(BYTES)]


def _batches(items: list[str], size: int) -> Iterator[list[str]]:
    return (items[start : start + size] for start in range(0, len(items), size))


LEARNERS: dict[str, Callable[[Mapping[str, int], int], Model]] = {
    "wordpiece": _wordpiece,
    "bpe": _bpe,
    "unigram": _unigram,
    "characters": _characters,
}
