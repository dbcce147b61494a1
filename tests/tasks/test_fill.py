"""Hidden words and next sentences: batches say what was there, and both losses are what a slow reader would compute."""

import random
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from qkv.data.tokenise import sentences_of
from qkv.tasks.evaluate import evaluate, judge_words
from qkv.tasks.material import JUDGED, Documents, masked_dataset
from qkv.tasks.objectives import fill
from torch import Tensor

from qkv.config.recipe import Recipe
from qkv.corpus.files import Row
from qkv.data.batch import MaskedBatch
from qkv.model import Encoder, build_model
from qkv.tokenizer.train import train_tokenizer
from qkv.train.loop import new_state, train
from tests.support.tiny_models import build, near, tokens

WORDS = ["film", "actor", "scene", "plot", "terrible", "wonderful", "unwatchable", "director", "story", "music"]


def document(dice: random.Random, sentences: int) -> str:
    """One that has a single sentence has a short one."""
    most = 2 if sentences == 1 else 6
    return " ".join(" ".join(dice.choices(WORDS, k=dice.randint(1, most))).capitalize() + "." for _ in range(sentences))


DICE = random.Random(1)
TEXTS = [document(DICE, 1 if n % 2 == 0 else DICE.randint(2, 9)) for n in range(60)]
TOKENIZER = train_tokenizer(TEXTS, kind="wordpiece", vocab_size=150, lowercase=True)
STORE = sentences_of([Row(text, None, None, None, "here") for text in TEXTS], TOKENIZER, "english")
PAD, CLS, SEP, MASK = 0, 2, 3, 4


def recipe(model: dict[str, Any] | None = None, **settings: Any) -> Recipe:
    small = {
        "vocabulary": TOKENIZER.size, "width": 16, "heads": 2, "layers": 2, "feedforward": 19, "segments": 2,
        "head": "pretraining", "pooler": "tanh",
    }  # fmt: skip
    learning = {"dropout": 0.0, "warmup": 0, "batch_tokens": 400, "steps": 1, "clip": 0.0, **settings}
    return Recipe.read({"task": "fill", "data": {"length": 40}, "model": {**small, **(model or {})}, "train": learning})


def documents(**settings: Any) -> Documents:
    return masked_dataset(recipe(**settings), STORE, TOKENIZER)


def model_of(**changes: Any) -> Encoder:
    return cast(Encoder, build(recipe(changes).model))


def slow(model: Encoder, batch: MaskedBatch) -> dict[str, Tensor]:
    """Every word scored at every place, targets laid out beside them, and everything else ignored by a name of its
    own."""
    hidden_BLD = model(batch.tokens_BL, batch.keep_BL, segments_BL=batch.segments_BL)
    targets_BL = torch.full(batch.tokens_BL.shape, -100)
    targets_BL.view(-1)[batch.positions_N] = batch.targets_N
    answers_B = torch.full((len(targets_BL),), -100)
    answers_B[batch.pairs_M] = batch.negatives_M
    assert model.text is not None
    return {
        "word": F.cross_entropy(model.logits(hidden_BLD).transpose(1, 2), targets_BL, reduction="sum"),
        "next": F.cross_entropy(model.text(hidden_BLD, batch.keep_BL), answers_B, reduction="sum"),
    }


# --- batches


@pytest.mark.parametrize("epoch", [0, 1, JUDGED])
@pytest.mark.parametrize("whole", [False, True])
def test_with_the_words_put_back_a_batch_is_the_framed_text(epoch: int, whole: bool) -> None:
    words = documents(whole_words=whole).words
    numbers = np.arange(len(words.examples.rows_N))[::-1].copy()
    batch = words.collate(numbers, epoch)
    restored = batch.tokens_BL.clone()
    assert batch.positions_N.tolist() == sorted(set(batch.positions_N.tolist()))
    assert (restored.view(-1)[batch.positions_N] == MASK).double().mean() > 0.6
    restored.view(-1)[batch.positions_N] = batch.targets_N
    assert batch.segments_BL is not None
    assert batch.keep_BL is not None
    pairs, real = list[tuple[int, int]](), 0
    for row, number in enumerate(numbers.tolist()):
        a, b = (
            words.store.tokens[slice(*span[number])].tolist() for span in (words.examples.a_N2, words.examples.b_N2)
        )
        expected, segments = [CLS, *a, SEP], [0] * (len(a) + 2)
        if b:
            other, is_stranger = words.negatives.second(number, epoch)
            if is_stranger is not None:
                pairs.append((row, int(is_stranger)))
            expected += [*words.store.tokens[slice(*words.examples.b_N2[other])].tolist(), SEP]
            segments += [1] * (len(b) + 1)
        padding = restored.shape[1] - len(expected)
        assert restored[row].tolist() == expected + [PAD] * padding
        assert batch.segments_BL[row].tolist() == segments + [0] * padding
        assert batch.keep_BL[row].tolist() == [True] * len(expected) + [False] * padding
        assert words.lengths()[number] == len(expected) <= 40
        real += len(expected)
    assert list(zip(batch.pairs_M.tolist(), batch.negatives_M.tolist(), strict=True)) == pairs
    assert {answer for _, answer in pairs} == {0, 1}
    assert len(pairs) < len(numbers)  # some are no pairs
    assert batch.real_tokens == real
    assert batch.counts == {"word": len(batch.targets_N), "next": len(pairs)}


def test_without_next_sentences_there_are_no_pairs_and_no_segments() -> None:
    batch = documents(next_sentence=False).words.collate(np.arange(9), 0)
    assert batch.segments_BL is None
    assert len(batch.pairs_M) == len(batch.negatives_M) == 0
    assert len(batch.targets_N) > 0


# --- the loss


@pytest.mark.parametrize("pool", ["first", "last"])
def test_both_losses_are_those_of_a_slow_reader(pool: str) -> None:
    model, material = model_of(pool=pool), documents()
    for number in range(3):
        _, (batch,) = material.step(number)
        found, expected = fill(model, batch), slow(model, batch)
        assert found.keys() == expected.keys()
        for part in found:
            torch.testing.assert_close(found[part], expected[part], rtol=1e-10, atol=1e-10)


def colliding(pairs: list[int], answers: list[int]) -> MaskedBatch:
    """Words 0 and 1 are to be guessed, as the answers are 0 and 1; 0 is also the padding. Places of every row."""
    ids, keep = tokens(4, 6, TOKENIZER.size), torch.ones(4, 6, dtype=torch.bool)
    ids[2, 4:], keep[2, 4:] = PAD, False
    places, words = torch.tensor([1, 3, 8, 13, 20, 22]), torch.tensor([0, 1, 0, 1, 7, 0])
    return MaskedBatch(
        ids, keep, torch.zeros_like(ids), np.arange(4), 22, places, words, torch.tensor(pairs), torch.tensor(answers)
    )


def test_no_target_of_one_loss_is_ignored_by_the_other() -> None:
    model, batch = model_of(), colliding([1, 3], [0, 1])
    hidden_BLD = model(batch.tokens_BL, batch.keep_BL, segments_BL=batch.segments_BL)
    assert model.text is not None
    logs_BLV, answers_B2 = (
        model.logits(hidden_BLD).log_softmax(-1),
        model.text(hidden_BLD, batch.keep_BL).log_softmax(1),
    )
    spots = [(0, 1, 0), (0, 3, 1), (1, 2, 0), (2, 1, 1), (3, 2, 7), (3, 4, 0)]  # row, column, word
    found = fill(model, batch)
    near(found["word"], -torch.stack([logs_BLV[spot] for spot in spots]).sum())
    near(found["next"], -(answers_B2[1, 0] + answers_B2[3, 1]))
    assert batch.counts == {"word": 6.0, "next": 2.0}


def test_rows_without_a_pair_have_no_part_in_the_next_loss_but_their_words_count() -> None:
    model, batch = model_of(), colliding([1, 3], [0, 1])
    found = fill(model, batch)
    other = replace(batch, tokens_BL=batch.tokens_BL.clone())
    other.tokens_BL[[0, 2], 0] = 9
    changed = fill(model, other)
    near(changed["next"], found["next"])
    assert abs(changed["word"] - found["word"]) > 1e-3
    flipped = fill(model, replace(batch, negatives_M=torch.tensor([1, 1])))
    near(flipped["word"], found["word"])
    assert abs(flipped["next"] - found["next"]) > 1e-3
    single = [fill(model, colliding([row], [answer]))["next"] for row, answer in ((1, 0), (3, 1))]
    near(single[0] + single[1], found["next"])
    assert min(single) > 1e-3  # neither answer is ignored
    none = fill(model, colliding([], []))
    assert none.keys() == {"word"}
    near(none["word"], found["word"])


def test_a_step_is_the_same_in_one_or_three_micro_batches() -> None:
    """Of the three, the first holds the short texts, of which none is a pair."""
    found = []
    for pieces in (1, 3, 7):
        choices = recipe(batch_tokens=100_000, micro_batches=pieces)
        material = masked_dataset(choices, STORE, TOKENIZER)
        counts = [batch.counts for batch in material.step(0)[1]]
        assert len(counts) == pieces
        assert pieces == 1 or (min(c["next"] for c in counts) == 0 and len({c["word"] for c in counts}) > 2)
        state = new_state(build_model(choices.model, seed=3).double(), choices, material, material)
        (line,) = [report.line for report in train(state) if report.line]
        grads = {name: weight.grad for name, weight in state.model.named_parameters()}
        found.append((grads, [line[key] for key in ("loss", "word_loss", "next_loss")]))
    for grads, losses in found[1:]:
        assert losses == pytest.approx(found[0][1], abs=1e-12)
        for name, grad in grads.items():
            expected = found[0][0][name]
            assert grad is not None
            assert expected is not None
            assert expected.norm() > 0, name
            torch.testing.assert_close(grad, expected, rtol=0, atol=1e-12, msg=name)


# --- evaluation


def test_an_evaluation_judges_all_and_always_the_same() -> None:
    model, material = model_of().train(), documents(micro_batches=2)
    first = evaluate(model, material)
    assert first is not None
    assert model.training
    assert evaluate(model, material) == first
    assert judge_words(model.eval(), documents(micro_batches=5)) == first
    everything = material.words.collate(np.arange(len(material.words.examples.rows_N)), JUDGED)
    totals = {part: float(total.detach()) for part, total in slow(model, everything).items()}
    means = {part: total / everything.counts[part] for part, total in totals.items()}
    assert first.figures["word_loss"] == pytest.approx(means["word"], abs=1e-9)
    assert first.figures["next_loss"] == pytest.approx(means["next"], abs=1e-9)
    assert first.figures["perplexity"] == pytest.approx(float(np.exp(means["word"])), rel=1e-9)
    assert first.loss == pytest.approx(means["word"] + means["next"], abs=1e-9)
    assert 0 <= first.figures["token_accuracy"] <= 1
    assert 0 < first.figures["next_accuracy"] < 1


def test_some_tokens_are_an_even_choice_of_short_and_long() -> None:
    lengths = documents().words.lengths()
    total = int(lengths.sum())
    material = documents(batch_tokens=60, eval_tokens=total // 3)
    chosen = np.concatenate(material.judged())
    assert len(set(chosen.tolist())) == len(chosen)
    assert abs(int(lengths[chosen].sum()) - total // 3) < 120
    assert abs(lengths[chosen].mean() - lengths.mean()) < 0.15 * lengths.mean()
    assert lengths[chosen].min() <= np.quantile(lengths, 0.2)
    assert lengths[chosen].max() >= np.quantile(lengths, 0.8)
    for asked in (0, total, 10 * total):
        every = documents(batch_tokens=60, eval_tokens=asked).judged()
        assert sorted(np.concatenate(every).tolist()) == list(range(len(lengths)))


def test_however_few_tokens_are_asked_for_something_is_judged() -> None:
    material = documents(batch_tokens=1000, eval_tokens=100)
    assert len(material.judged()) >= 1
    assert judge_words(model_of(), material).loss > 0
