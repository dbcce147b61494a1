"""Which words decided: on models where the answer is known, by finite differences, and on small trained classifiers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import tokenizers
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from tokenizers import models, normalizers, pre_tokenizers

from qkv import terminal
from qkv.config.recipe import ModelConfig
from qkv.explain import attribution
from qkv.explain.attribution import STEPS, deciding_words, token_scores
from qkv.model import Decoder, Encoder, build_model
from qkv.predict.prediction import InputOptions, TextBatch
from qkv.predict.predictor import Predictor
from qkv.schema import UserError
from qkv.tokenizer.tokenizer import Tokenizer
from tests.support.small_folders import IDS, SIZES, TOKENS, WORDS, tokenizer
from tests.support.tiny_models import build

LABELS = ("bad", "good", "neither")
SHORT = "not very good and dull"
TEXT = "the film was not very good and we saw it"  # no word twice
ENCODER = {"family": "encoder", "head": "classification", "classes": 3, "positions": "learned", "segments": 2,
           "embedding_norm": True, "embedding_scale": True, "pooler": "tanh"}  # fmt: skip
DECODER = {"family": "decoder", "head": "classification", "classes": 3, "positions": "rotary", "norm_place": "pre"}


def predictor(
    changes: dict[str, Any], options: InputOptions | None = None, seed: int = 1, **dropout: float
) -> Predictor:
    """A float64 model with random weights, and whole words as tokens: [CLS] ... [SEP] around them for an encoder."""
    config = ModelConfig.read({**SIZES, **changes})
    task = "classify" if config.family == "encoder" else "last-token"
    labels = LABELS[: config.classes] if config.head == "classification" else ()
    model, made = build(config, seed, **dropout), Tokenizer(tokenizer(task))
    return Predictor(model, config, made, labels=labels, input_options=options)


def decision(asked: Predictor, text: str, label: str) -> float:
    """Logit of a label minus the mean logit of the others, by what `predict` says: log probabilities differ as logits
    do."""
    (answer,) = asked.predict([text])
    assert answer.probabilities is not None
    logs = {name: math.log(p) for name, p in answer.probabilities.items()}
    mine = logs.pop(label)
    return mine - sum(logs.values()) / len(logs)


@contextmanager
def shares_of(asked: Predictor, shares: dict[str, float]) -> Iterator[None]:
    """Each word's vector that share of the way from the average of all vectors to its own."""
    table = asked.model.embedding.table_VD
    kept = table.detach().clone()
    with torch.no_grad():
        for word, share in shares.items():
            table[IDS[word]] = kept.mean(0) + share * (kept[IDS[word]] - kept.mean(0))
        yield
        table.copy_(kept)


def slowly(asked: Predictor, text: str, label: str) -> dict[str, float]:
    """Each word's score by central differences of what `predict` says, word by word and step by step."""
    words, small = text.split(), 1e-5
    sums = dict.fromkeys(words, 0.0)
    for step in range(STEPS):
        share = (step + 0.5) / STEPS
        for word in words:
            found = []
            for moved in (share + small, share - small):
                with shares_of(asked, {**dict.fromkeys(words, share), word: moved}):
                    found.append(decision(asked, text, label))
            sums[word] += (found[0] - found[1]) / (2 * small) / STEPS
    return sums


def scores_by_word(asked: Predictor, text: str, label: str | None = None) -> dict[str, float]:
    return {one.word.strip(): one.score for one in deciding_words(asked, text, label)}


def test_on_a_linear_model_words_add_up_to_the_decision() -> None:
    """With nothing in its layers and the mean as its answer, every word gives
    (w of the label - mean w of the others) . (its vector - average vector) / n."""
    asked = predictor({"family": "decoder", "head": "classification", "classes": 3, "norm": "none", "positions": "none",
                       "pool": "mean"})  # fmt: skip
    model = asked.model
    assert isinstance(model, Decoder)
    assert model.text is not None
    assert model.text.output is not None
    with torch.no_grad():
        for weight in model.stack.parameters():
            weight.zero_()
    table, weights = model.embedding.table_VD.detach(), model.text.output.weight.detach()
    for number, label in enumerate(LABELS):
        direction = weights[number] - (weights.sum(0) - weights[number]) / 2
        by_hand = {word: float(direction @ (table[IDS[word]] - table.mean(0))) / 3 for word in ("not", "very", "good")}
        found = scores_by_word(asked, "not very good", label)
        assert found == pytest.approx(by_hand, abs=1e-12)
        with shares_of(asked, dict.fromkeys(found, 0.0)):
            nothing = decision(asked, "not very good", label)
        assert sum(found.values()) == pytest.approx(decision(asked, "not very good", label) - nothing, abs=1e-12)


@pytest.mark.parametrize("changes", [ENCODER, DECODER], ids=["encoder", "decoder"])
def test_scores_are_what_finite_differences_give(changes: dict[str, Any]) -> None:
    asked = predictor(changes)
    for label in LABELS[:2]:
        assert scores_by_word(asked, SHORT, label) == pytest.approx(slowly(asked, SHORT, label), abs=1e-7)


@pytest.mark.parametrize("changes", [ENCODER, DECODER], ids=["encoder", "decoder"])
def test_scores_sum_to_how_far_the_words_move_the_decision(changes: dict[str, Any]) -> None:
    asked = predictor(changes)
    found = scores_by_word(asked, TEXT, "good")
    with shares_of(asked, dict.fromkeys(found, 0.0)):
        nothing = decision(asked, TEXT, "good")
    moved = decision(asked, TEXT, "good") - nothing
    assert abs(moved) > 0.1
    assert sum(found.values()) == pytest.approx(moved, rel=0.05)


@pytest.mark.parametrize("changes", [ENCODER, DECODER], ids=["encoder", "decoder"])
def test_a_text_read_in_windows_has_the_mean_over_them(changes: dict[str, Any]) -> None:
    asked = predictor(changes, InputOptions(length=4, truncation="windows"))
    found = scores_by_word(asked, SHORT, "good")
    assert found == pytest.approx(slowly(asked, SHORT, "good"), abs=1e-7)
    assert all(found.values())


def test_a_long_text_is_worked_on_in_several_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = predictor(DECODER)
    whole = scores_by_word(asked, TEXT, "good")
    for room in (1, 70):  # one step at a time; seven, and four in the last pass
        monkeypatch.setattr(attribution, "PASS_TOKENS", room)
        assert scores_by_word(asked, TEXT, "good") == pytest.approx(whole, abs=1e-12)


@pytest.mark.parametrize("changes", [ENCODER, DECODER], ids=["encoder", "decoder"])
def test_words_between_the_two_ends_decided_nothing(changes: dict[str, Any]) -> None:
    asked = predictor(changes, InputOptions(length=6, truncation="head+tail"))
    around = 0 if changes is DECODER else 2  # [CLS] and [SEP]
    head, tail = (6 - around + 1) // 2, (6 - around) // 2
    found, words = deciding_words(asked, TEXT, "good"), TEXT.split()
    assert [one.score != 0 for one in found] == [number < head or number >= 10 - tail for number in range(10)]
    short = deciding_words(asked, " ".join(words[:head] + words[10 - tail :]), "good")
    read = [one.score for one in found if one.score]
    assert read == pytest.approx([one.score for one in short], abs=1e-12)
    long, short_enough = asked.predict([TEXT, words[0]])
    assert (long.truncated, short_enough.truncated) == (True, False)


@pytest.mark.parametrize("changes", [ENCODER, DECODER], ids=["encoder", "decoder"])
def test_words_that_did_not_fit_decided_nothing(changes: dict[str, Any]) -> None:
    asked = predictor(changes, InputOptions(length=6))
    seen = 6 if changes is DECODER else 4  # [CLS] and [SEP] take two places
    found = deciding_words(asked, TEXT, "good")
    assert [one.score != 0 for one in found] == [number < seen for number in range(10)]
    short = deciding_words(asked, " ".join(TEXT.split()[:seen]), "good")
    assert [one.score for one in found[:seen]] == pytest.approx([one.score for one in short], abs=1e-12)


def test_without_a_label_it_is_the_predicted_one() -> None:
    seen = set()
    for seed in range(1, 9):
        asked = predictor(ENCODER, seed=seed)
        label = asked.predict([TEXT])[0].label
        assert deciding_words(asked, TEXT) == deciding_words(asked, TEXT, label)
        seen.add(label)
    assert len(seen) > 1, "a test of labels needs more than one of them"


def test_two_labels_have_opposite_scores_and_a_regression_its_own() -> None:
    two = predictor({**ENCODER, "classes": 2})
    against = [-one.score for one in deciding_words(two, TEXT, "bad")]
    assert [one.score for one in deciding_words(two, TEXT, "good")] == pytest.approx(against, abs=1e-12)
    regression = predictor({**ENCODER, "head": "regression"})
    found = scores_by_word(regression, TEXT)
    with shares_of(regression, dict.fromkeys(found, 0.0)):
        nothing = regression.predict([TEXT])[0].value
    value = regression.predict([TEXT])[0].value
    assert value is not None
    assert nothing is not None
    assert sum(found.values()) == pytest.approx(value - nothing, rel=0.05)


def test_asking_leaves_no_trace_and_draws_no_random_numbers() -> None:
    """Also where gradients are off, and of a model built with dropout."""
    asked = predictor(DECODER, dropout=0.5, attention_dropout=0.5)
    first = deciding_words(asked, TEXT, "good")
    with torch.no_grad():
        assert deciding_words(asked, TEXT, "good") == first
    assert all(weight.grad is None for weight in asked.model.parameters())
    assert not asked.model.training


def subwords(kind: str) -> tokenizers.Tokenizer:
    """Subword tokens, or bytes: there a blank is a token of its own, or the beginning of one."""
    if kind == "wordpiece":
        known = ["[UNK]", "un", "##bear", "##able", "film", "a", ",", "!"]
        made = tokenizers.Tokenizer(models.WordPiece({w: i for i, w in enumerate(known)}, unk_token="[UNK]"))
        made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        return made
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ġ", "f")] if kind == "blanks" else []
    table = {sign: i for i, sign in enumerate([*alphabet, *("".join(pair) for pair in merges)])}
    made = tokenizers.Tokenizer(models.BPE(table, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False)
    return made


def subword_predictor(kind: str) -> Predictor:
    made = Tokenizer(subwords(kind))
    config = ModelConfig.read({**SIZES, **DECODER, "vocabulary": made.size})
    return Predictor(build(config), config, made, labels=LABELS)


def each_token(asked: Predictor, text: str) -> list[float]:
    """The scores of all tokens: those of `deciding_words` before they are put together."""
    batch = TextBatch.of([0], [text], asked.tokenizer.encode([text]))
    return token_scores(asked, batch, torch.ones(batch.tokens_BL.shape[1], dtype=torch.bool), LABELS.index("good"))


@pytest.mark.parametrize(
    ("kind", "text", "words", "counts"),
    [
        ("wordpiece", " unbearable, a film!", [" unbearable, ", "a ", "film!"], [4, 1, 2]),
        ("bytes", "a film é", ["a ", "film ", "é"], [2, 5, 2]),  # the blank belongs to the word before
        ("blanks", "a film\n b", ["a ", "film\n ", "b"], [1, 6, 1]),  # "Ġf" belongs to the word it begins
    ],
)
def test_a_word_has_the_sum_of_its_tokens(kind: str, text: str, words: list[str], counts: list[int]) -> None:
    asked = subword_predictor(kind)
    tokens = each_token(asked, text)
    assert len(tokens) == sum(counts)
    ends = [sum(counts[: i + 1]) for i in range(len(counts))]
    sums = [sum(tokens[end - count : end]) for end, count in zip(ends, counts, strict=True)]
    found = deciding_words(asked, text, "good")
    assert [one.word for one in found] == words
    assert [one.score for one in found] == pytest.approx(sums, abs=1e-12)


BYTES = subword_predictor("bytes")


@settings(max_examples=40, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_whatever_the_text_its_words_make_it_up_and_no_token_is_lost(text: str) -> None:
    if not text.strip():
        if text:
            assert deciding_words(BYTES, text, "good") == []
        return
    found = deciding_words(BYTES, text, "good")
    assert "".join(one.word for one in found) == text
    assert all(len(one.word.split()) <= 2 for one in found)
    assert sum(one.score for one in found) == pytest.approx(sum(each_token(BYTES, text)), abs=1e-9)


def test_ideographs_are_words_of_their_own() -> None:
    assert [one.word for one in deciding_words(BYTES, "电影 good。", "good")] == ["电", "影 ", "good。"]


def test_special_tokens_carry_no_word() -> None:
    """Their vectors and gradients are there, and belong to nobody: an empty text has no words."""
    asked = predictor(ENCODER)
    assert deciding_words(asked, "", "good") == deciding_words(asked, " \n", "good") == []
    assert [one.word for one in deciding_words(asked, "film", "good")] == ["film"]


def trained(changes: dict[str, Any]) -> Predictor:
    """A classifier of five words in a row: good or bad if it has that word, neither if it has none of them."""
    sizes = {"vocabulary": len(TOKENS), "width": 16, "heads": 2, "layers": 1, "feedforward": 32, "context": 31}
    config = ModelConfig.read({**sizes, **changes, "classes": 3})
    model = build_model(config, seed=3)
    made = Tokenizer(tokenizer("classify" if config.family == "encoder" else "last-token"))
    random = torch.Generator().manual_seed(5)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    fillers = torch.tensor([IDS[word] for word in WORDS if word not in ("good", "bad")])
    template = made.template(pair=False)
    for _ in range(80):
        labels_B = torch.randint(3, (32,), generator=random)
        ids_BL = fillers[torch.randint(len(fillers), (32, 5), generator=random)]
        rows = (labels_B < 2).nonzero()[:, 0]
        places = torch.randint(5, (len(rows),), generator=random)
        ids_BL[rows, places] = torch.tensor([IDS["bad"], IDS["good"]])[labels_B[rows]]
        around = [torch.tensor(side).long().expand(32, len(side)) for side in (template.before, template.after)]
        hidden = model(torch.cat([around[0], ids_BL, around[1]], 1))
        F.cross_entropy(model.text(hidden), labels_B).backward()  # type: ignore[misc]
        optimiser.step()
        optimiser.zero_grad()
    return Predictor(model, config, made, labels=LABELS)


@pytest.mark.parametrize("changes", [ENCODER, DECODER], ids=["encoder", "decoder"])
def test_the_word_that_decides_has_the_largest_score(changes: dict[str, Any]) -> None:
    asked = trained(changes)
    texts = {"good": ["we saw a good film", "good plot is it very", "the film was very good"],
             "bad": ["we saw a bad film", "bad plot is it very", "the film was very bad"]}  # fmt: skip
    for label in ("good", "bad"):
        for text in texts[label]:
            assert asked.predict([text])[0].label == label
            assert max(deciding_words(asked, text), key=lambda one: one.score).word.strip() == label
            assert min(deciding_words(asked, text, "neither"), key=lambda one: one.score).word.strip() == label


def test_mistakes_are_named() -> None:
    with pytest.raises(UserError, match="label = 'god': did you mean good\\? known: bad, good, neither"):
        deciding_words(predictor(ENCODER), TEXT, "god")
    with pytest.raises(UserError, match="label = 'good': a regression model has no labels"):
        deciding_words(predictor({**ENCODER, "head": "regression"}), TEXT, "good")
    with pytest.raises(
        UserError, match="this model has head = 'tokens'; attributions need classification or regression"
    ):
        deciding_words(predictor({"family": "encoder", "head": "tokens"}), TEXT)
    with pytest.raises(UserError, match="attributions are for single texts, not for pairs"):
        deciding_words(predictor(ENCODER, InputOptions(pairs=True)), TEXT)
    with pytest.raises(UserError, match="no tokens"):
        deciding_words(predictor(DECODER), "")
    without_film = tokenizer("last-token")
    without_film.normalizer = normalizers.Replace("film", "")
    asked = predictor(DECODER)
    silent = Predictor(asked.model, asked.config, Tokenizer(without_film), labels=LABELS)
    with pytest.raises(UserError, match="no tokens"):
        deciding_words(silent, "film", "good")


def plain(shown: object, **options: Any) -> str:
    console = Console(width=80, **options)
    with console.capture() as captured:
        console.print(shown)
    return captured.get()


def test_words_are_coloured_by_sign_and_strength_and_marked_for_those_who_see_no_colour() -> None:
    words = [("  an ", 0.01), ("awesome ", 2.0), ("film, ", 0.5), ("not ", -1.0), ("seen", 0.2)]
    text = terminal.coloured_words(words)
    assert plain(text, no_color=True) == "  an awesome(+) film,(+) not(-) seen\n"
    styles = {text.plain[span.start : span.end]: str(span.style) for span in text.spans}
    assert styles == {
        "awesome(+)": "bold underline white on rgb(0,114,178)",
        "film,(+)": "bold underline black on rgb(191,220,236)",
        "not(-)": "bold underline black on rgb(242,207,128)",
        "seen": "black on rgb(230,241,247)",
    }


@pytest.mark.parametrize("words", [[], [("nothing ", 0.0), ("decided", 0.0)], [(" ", 0.0)]])
def test_words_without_scores_stay_as_they_are(words: list[tuple[str, float]]) -> None:
    text = terminal.coloured_words(words)
    assert text.plain == "".join(word for word, _ in words)
    assert not text.spans


def test_an_encoder_is_tested_where_it_has_segments() -> None:
    """The segment's vector must not count as a word's: else the tests above would not notice."""
    model = predictor(ENCODER).model
    assert isinstance(model, Encoder)
    assert model.embedding.segments is not None
