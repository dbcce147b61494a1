"""Masked tokens and next sentences: batches list the original tokens, both losses are those of a slow reference."""

import random
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from qkv.config.recipe import Recipe
from qkv.corpus.files import Row
from qkv.data.store import temporary_store, write_sentences
from qkv.model import Encoder, build_model
from qkv.tasks import TASKS
from qkv.tasks.fill import MaskedBatch, MaskedDataset, loss, masked_dataset
from qkv.tasks.task import EVALUATION
from qkv.tokenizer.train import train_tokenizer
from qkv.training.loop import TrainState, batches_of, new_state, train, validate
from tests.support.tiny_models import build, near, tokens

WORDS = ["film", "actor", "scene", "plot", "terrible", "wonderful", "unwatchable", "director", "story", "music"]


def document(dice: random.Random, sentences: int) -> str:
    """One that has a single sentence has a short one."""
    most = 2 if sentences == 1 else 6
    return " ".join(" ".join(dice.choices(WORDS, k=dice.randint(1, most))).capitalize() + "." for _ in range(sentences))


DICE = random.Random(1)
TEXTS = [document(DICE, 1 if n % 2 == 0 else DICE.randint(2, 9)) for n in range(60)]
TOKENIZER = train_tokenizer(TEXTS, kind="wordpiece", vocab_size=150, lowercase=True)
ROWS = [Row(text, None, None, None, "here") for text in TEXTS]
STORE = temporary_store(lambda writer: write_sentences(ROWS, TOKENIZER, "english", writer))
PAD, CLS, SEP, MASK = 0, 2, 3, 4


def recipe(model: dict[str, Any] | None = None, **settings: Any) -> Recipe:
    small = {
        "vocabulary": TOKENIZER.size, "width": 16, "heads": 2, "layers": 2, "feedforward": 19, "segments": 2,
        "head": "pretraining", "pooler": "tanh",
    }  # fmt: skip
    keys = {"dropout": 0.0, "warmup": 0, "batch_tokens": 400, "steps": 1, "clip": 0.0, **settings}
    return Recipe.read({"task": "fill", "data": {"length": 40}, "model": {**small, **(model or {})}, "train": keys})


def dataset_of(**settings: Any) -> MaskedDataset:
    return masked_dataset(recipe(**settings), STORE, TOKENIZER)


def state_of(model: Encoder, **settings: Any) -> TrainState:
    dataset = dataset_of(**settings)
    return new_state(model, recipe(**settings), TASKS["fill"], dataset, dataset)


def model_of(**changes: Any) -> Encoder:
    return cast(Encoder, build(recipe(changes).model))


def slow(model: Encoder, batch: MaskedBatch) -> dict[str, Tensor]:
    """Logits of every token at every position; a position without a target is ignored by its value, -100."""
    hidden_BLD = model(batch.tokens_BL, batch.keep_BL, segments_BL=batch.segments_BL)
    targets_BL = torch.full(batch.tokens_BL.shape, -100)
    targets_BL.view(-1)[batch.positions_N] = batch.targets_N
    answers_B = torch.full((len(targets_BL),), -100)
    answers_B[batch.pairs_M] = batch.negatives_M
    assert model.text is not None
    found = {
        "token": F.cross_entropy(model.logits(hidden_BLD).transpose(1, 2), targets_BL, reduction="sum"),
        "next_sentence": F.cross_entropy(model.text(hidden_BLD, batch.keep_BL), answers_B, reduction="sum"),
    }
    if batch.matching_K is not None:
        matches_BL = torch.full(batch.tokens_BL.shape, -100)
        matches_BL.view(-1)[batch.matching_K] = cast(Tensor, batch.unmatched_K)
        logits_BL2 = model.text.answer(hidden_BLD)
        found["token_match"] = F.cross_entropy(logits_BL2.transpose(1, 2), matches_BL, reduction="sum")
    return found


# --- batches


@pytest.mark.parametrize("epoch", [0, 1, EVALUATION])
@pytest.mark.parametrize("whole", [False, True])
def test_with_its_targets_put_back_a_batch_is_the_framed_text(epoch: int, whole: bool) -> None:
    dataset = dataset_of(whole_words=whole)
    numbers = np.arange(len(dataset.examples.rows_N))[::-1].copy()
    batch = dataset.collate(numbers, epoch)
    restored = batch.tokens_BL.clone()
    assert batch.positions_N.tolist() == sorted(set(batch.positions_N.tolist()))
    assert (restored.view(-1)[batch.positions_N] == MASK).double().mean() > 0.6
    restored.view(-1)[batch.positions_N] = batch.targets_N
    assert batch.segments_BL is not None
    assert batch.keep_BL is not None
    pairs, real = list[tuple[int, int]](), 0
    for row, number in enumerate(numbers.tolist()):
        a, b = (
            dataset.store.tokens[slice(*span[number])].tolist()
            for span in (dataset.examples.a_N2, dataset.examples.b_N2)
        )
        expected, segments = [CLS, *a, SEP], [0] * (len(a) + 2)
        if b:
            other, is_negative = dataset.negatives.second(number, epoch)
            if is_negative is not None:
                pairs.append((row, int(is_negative)))
            expected += [*dataset.store.tokens[slice(*dataset.examples.b_N2[other])].tolist(), SEP]
            segments += [1] * (len(b) + 1)
        padding = restored.shape[1] - len(expected)
        assert restored[row].tolist() == expected + [PAD] * padding
        assert batch.segments_BL[row].tolist() == segments + [0] * padding
        assert batch.keep_BL[row].tolist() == [True] * len(expected) + [False] * padding
        assert dataset.lengths_N[number] == len(expected) <= 40
        real += len(expected)
    assert list(zip(batch.pairs_M.tolist(), batch.negatives_M.tolist(), strict=True)) == pairs
    assert {answer for _, answer in pairs} == {0, 1}
    assert len(pairs) < len(numbers)  # some are no pairs
    assert batch.real_tokens == real
    assert batch.counts == {"token": len(batch.targets_N), "next_sentence": len(pairs)}


def test_without_next_sentences_there_are_no_pairs_and_no_segments() -> None:
    batch = dataset_of(next_sentence=False).collate(np.arange(9), 0)
    assert batch.segments_BL is None
    assert len(batch.pairs_M) == len(batch.negatives_M) == 0
    assert len(batch.targets_N) > 0


def test_with_overlap_some_first_texts_end_with_the_second_and_lengths_stay() -> None:
    plain, moved = dataset_of(), dataset_of(pair_overlap=0.5)
    assert np.array_equal(plain.lengths_N, moved.lengths_N)
    repeated = 0
    for number in np.flatnonzero(np.diff(moved.examples.b_N2)[:, 0]).tolist():
        before, after = (one.collate(np.array([number]), 0) for one in (plain, moved))
        assert before.real_tokens == after.real_tokens
        assert before.negatives_M.tolist() == after.negatives_M.tolist()
        tokens_L = after.tokens_BL.view(-1).clone()
        tokens_L[after.positions_N] = after.targets_N
        ids = tokens_L.tolist()
        middle = ids.index(SEP)
        first, second = ids[1:middle], ids[middle + 1 : -1]
        shared = min(len(first), len(second))
        repeated += after.negatives_M.tolist() == [0] and first[-shared:] == second[-shared:]
    assert repeated > 3
    evaluated = [one.collate(np.arange(20), EVALUATION).tokens_BL for one in (plain, moved)]
    assert torch.equal(*evaluated)


def test_every_token_of_a_pair_that_is_not_masked_is_matched_with_the_other_text() -> None:
    dataset = dataset_of(token_match=True)
    numbers = np.arange(len(dataset.examples.rows_N))
    batch, plain = dataset.collate(numbers, 0), dataset_of().collate(numbers, 0)
    assert torch.equal(batch.tokens_BL, plain.tokens_BL)
    assert plain.matching_K is None
    assert batch.matching_K is not None
    assert batch.unmatched_K is not None
    assert batch.segments_BL is not None
    original_BL = batch.tokens_BL.clone()
    original_BL.view(-1)[batch.positions_N] = batch.targets_N
    masked, expected = set(batch.positions_N.tolist()), list[tuple[int, int]]()
    for row, (ids, segments) in enumerate(zip(original_BL.tolist(), batch.segments_BL.tolist(), strict=True)):
        texts = [{i for i, s in zip(ids, segments, strict=True) if s == k and i > MASK} for k in (0, 1)]
        for column, (token, segment) in enumerate(zip(ids, segments, strict=True)):
            place = row * len(ids) + column
            if texts[1] and token > MASK and place not in masked:
                expected.append((place, int(token not in texts[1 - segment])))
    assert list(zip(batch.matching_K.tolist(), batch.unmatched_K.tolist(), strict=True)) == expected
    assert 0 < batch.unmatched_K.double().mean() < 1
    assert batch.counts["token_match"] == len(expected)


# --- the loss


@pytest.mark.parametrize("match", [False, True])
@pytest.mark.parametrize("pool", ["first", "last"])
def test_all_losses_are_those_of_the_slow_reference(pool: str, match: bool) -> None:
    model = model_of(pool=pool)
    state = state_of(model, token_match=match)
    for step in range(3):
        (batch,) = batches_of(state, step)
        assert isinstance(batch, MaskedBatch)
        found, expected = loss(model, batch), slow(model, batch)
        assert found.keys() == expected.keys()
        for part in found:
            torch.testing.assert_close(found[part], expected[part], rtol=1e-10, atol=1e-10)


def colliding(pairs: list[int], answers: list[int]) -> MaskedBatch:
    """Tokens 0 and 1 are among the targets, as the answers are 0 and 1; 0 is also the padding. Every row has some."""
    ids, keep = tokens(4, 6, TOKENIZER.size), torch.ones(4, 6, dtype=torch.bool)
    ids[2, 4:], keep[2, 4:] = PAD, False
    at, targets = torch.tensor([1, 3, 8, 13, 20, 22]), torch.tensor([0, 1, 0, 1, 7, 0])
    return MaskedBatch(
        ids, keep, torch.zeros_like(ids), np.arange(4), 22, at, targets, torch.tensor(pairs), torch.tensor(answers)
    )


def test_no_target_of_one_loss_is_ignored_by_the_other() -> None:
    model, batch = model_of(), colliding([1, 3], [0, 1])
    hidden_BLD = model(batch.tokens_BL, batch.keep_BL, segments_BL=batch.segments_BL)
    assert model.text is not None
    logs_BLV, answers_B2 = (
        model.logits(hidden_BLD).log_softmax(-1),
        model.text(hidden_BLD, batch.keep_BL).log_softmax(1),
    )
    spots = [(0, 1, 0), (0, 3, 1), (1, 2, 0), (2, 1, 1), (3, 2, 7), (3, 4, 0)]  # row, column, token
    found = loss(model, batch)
    near(found["token"], -torch.stack([logs_BLV[spot] for spot in spots]).sum())
    near(found["next_sentence"], -(answers_B2[1, 0] + answers_B2[3, 1]))
    assert batch.counts == {"token": 6.0, "next_sentence": 2.0}


def test_rows_without_a_pair_have_no_part_in_the_next_sentence_loss_but_their_tokens_count() -> None:
    model, batch = model_of(), colliding([1, 3], [0, 1])
    found = loss(model, batch)
    other = replace(batch, tokens_BL=batch.tokens_BL.clone())
    other.tokens_BL[[0, 2], 0] = 9
    changed = loss(model, other)
    near(changed["next_sentence"], found["next_sentence"])
    assert abs(changed["token"] - found["token"]) > 1e-3
    flipped = loss(model, replace(batch, negatives_M=torch.tensor([1, 1])))
    near(flipped["token"], found["token"])
    assert abs(flipped["next_sentence"] - found["next_sentence"]) > 1e-3
    single = [loss(model, colliding([row], [answer]))["next_sentence"] for row, answer in ((1, 0), (3, 1))]
    near(single[0] + single[1], found["next_sentence"])
    assert min(single) > 1e-3  # neither answer is ignored
    none = loss(model, colliding([], []))
    assert none.keys() == {"token"}
    near(none["token"], found["token"])


def test_a_step_is_the_same_in_one_or_three_micro_batches() -> None:
    """Of the three, the first holds the short texts, of which none is a pair."""
    found = []
    for parts in (1, 3, 7):
        settings: dict[str, Any] = {"batch_tokens": 100_000, "micro_batches": parts}
        state = state_of(cast(Encoder, build_model(recipe(**settings).model, seed=3).double()), **settings)
        counts = [batch.counts for batch in batches_of(state, 0)]
        assert len(counts) == parts
        assert parts == 1 or (min(c["next_sentence"] for c in counts) == 0 and len({c["token"] for c in counts}) > 2)
        (line,) = [report.line for report in train(state) if report.line]
        grads = {name: weight.grad for name, weight in state.model.named_parameters()}
        found.append((grads, [line[key] for key in ("loss", "token_loss", "next_sentence_loss")]))
    for grads, losses in found[1:]:
        assert losses == pytest.approx(found[0][1], abs=1e-12)
        for name, grad in grads.items():
            expected = found[0][0][name]
            assert grad is not None
            assert expected is not None
            assert expected.norm() > 0, name
            torch.testing.assert_close(grad, expected, rtol=0, atol=1e-12, msg=name)


# --- validation


def read_by_validation(**settings: Any) -> list[NDArray[np.int64]]:
    """The examples of each batch that a validation reads."""
    found = list[NDArray[np.int64]]()

    class Recording(MaskedDataset):
        def collate(self, examples_B: NDArray[np.int64], epoch: int) -> MaskedBatch:
            assert epoch == EVALUATION
            found.append(examples_B)
            return super().collate(examples_B, epoch)

    dataset = Recording(**vars(dataset_of(**settings)))
    assert TASKS["fill"].validate(model_of(), dataset).loss > 0
    return found


def test_a_validation_reads_all_and_always_the_same() -> None:
    model = model_of().train()
    state = state_of(model, micro_batches=2)
    first = validate(state)
    assert first is not None
    assert model.training
    assert validate(state) == first
    assert TASKS["fill"].validate(model.eval(), dataset_of(micro_batches=5)) == first
    dataset = dataset_of()
    everything = dataset.collate(np.arange(len(dataset.examples.rows_N)), EVALUATION)
    totals = {part: float(total.detach()) for part, total in slow(model, everything).items()}
    means = {part: total / everything.counts[part] for part, total in totals.items()}
    assert first.metrics["token_loss"] == pytest.approx(means["token"], abs=1e-9)
    assert first.metrics["next_sentence_loss"] == pytest.approx(means["next_sentence"], abs=1e-9)
    assert first.metrics["perplexity"] == pytest.approx(float(np.exp(means["token"])), rel=1e-9)
    assert first.loss == pytest.approx(means["token"] + means["next_sentence"], abs=1e-9)
    assert 0 <= first.metrics["token_accuracy"] <= 1
    assert 0 < first.metrics["next_sentence_accuracy"] < 1


def test_some_tokens_are_an_even_choice_of_short_and_long() -> None:
    lengths = dataset_of().lengths_N
    total = int(lengths.sum())
    chosen = np.concatenate(read_by_validation(batch_tokens=60, eval_tokens=total // 3))
    assert len(set(chosen.tolist())) == len(chosen)
    assert abs(int(lengths[chosen].sum()) - total // 3) < 120
    assert abs(lengths[chosen].mean() - lengths.mean()) < 0.15 * lengths.mean()
    assert lengths[chosen].min() <= np.quantile(lengths, 0.2)
    assert lengths[chosen].max() >= np.quantile(lengths, 0.8)
    for asked in (0, total, 10 * total):
        every = read_by_validation(batch_tokens=60, eval_tokens=asked)
        assert sorted(np.concatenate(every).tolist()) == list(range(len(lengths)))


def test_however_few_tokens_are_asked_for_something_is_validated() -> None:
    assert len(read_by_validation(batch_tokens=1000, eval_tokens=100)) >= 1
