"""The loop learns what it is given, counts every example once however a step is cut, and says what happened."""

import json
import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from torch import Tensor

from qkv import calibration, metrics
from qkv.config.recipe import Recipe
from qkv.data.prepare import Prepared
from qkv.data.store import Store
from qkv.model import build_model
from qkv.model.dropout import seed_dropout
from qkv.schema import UserError
from qkv.tasks import TASKS
from qkv.tasks.task import EVALUATION, Dataset, Validation
from qkv.tasks.texts import LabelBatch, TextDataset, text_dataset, text_logits
from qkv.tokenizer.tokenizer import Tokenizer
from qkv.tokenizer.train import train_tokenizer
from qkv.training.loop import Report, TrainState, _compare_best, batches_of, new_state, train, validate

CLASSIFY = TASKS["classify"]
LETTERS = "abcdefghijk"
TOKENIZER = train_tokenizer([LETTERS], kind="characters", vocab_size=20, lowercase=True)
Rows = list[tuple[str, int]]


def texts(dataset: Dataset) -> TextDataset:
    assert isinstance(dataset, TextDataset)
    return dataset


def one_example(state: TrainState, number: int) -> LabelBatch:
    return texts(state.train).collate(np.array([number]), EVALUATION)


def tokens_of(state: TrainState, step: int) -> list[list[list[int]]]:
    """Of each micro-batch of a step."""
    return [batch.tokens_BL.tolist() for batch in batches_of(state, step)]


def store_of(rows: Rows) -> Store:
    ids = TOKENIZER.ids([text for text, _ in rows])
    starts = np.cumsum([0, *(len(one) for one in ids)]).astype(np.int64)
    flat = np.array([number for one in ids for number in one], np.uint32)
    labels = np.array([label for _, label in rows], np.int32)
    return Store(flat, starts, np.zeros(0, np.int64), labels, pairs=False)


def words(n: int, seed: int, longest: int = 11) -> list[str]:
    dice = random.Random(seed)
    return ["".join(dice.choices(LETTERS, k=dice.randint(1, longest))) for _ in range(n)]


def labelled(texts: list[str]) -> Rows:
    """A rule to learn: is there an a in it?"""
    return [(text, int("a" in text)) for text in texts]


def recipe(data: dict[str, Any] | None = None, model: dict[str, Any] | None = None, **settings: Any) -> Recipe:
    small = {
        "vocabulary": TOKENIZER.size, "width": 20, "heads": 2, "layers": 2, "feedforward": 23, "head": "classification",
    }  # fmt: skip
    train = {"dropout": 0.0, "warmup": 0, "batch_tokens": 64, "learning_rate": 3e-3, **settings}
    return Recipe.read({"data": {"length": 64, **(data or {})}, "model": {**small, **(model or {})}, "train": train})


def prepared(choices: Recipe, rows: Rows, held_out: Rows) -> Prepared:
    labels = tuple(str(number) for number in range(choices.model.classes))
    train, validation = store_of(rows), store_of(held_out)
    return Prepared(TOKENIZER, None, labels, train, validation, counts={}, text_bytes={}, notes=[], data_hash="")


def state_of(choices: Recipe, rows: Rows, held_out: Rows | None = None, *, double: bool = False) -> TrainState:
    model = build_model(choices.model, seed=choices.seed, dropout=choices.train.dropout)
    datasets = CLASSIFY.datasets(choices, prepared(choices, rows, held_out or []))
    return new_state(model.double() if double else model, choices, CLASSIFY, *datasets)


def weights(state: TrainState) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in state.model.named_parameters()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def gradients(state: TrainState) -> Tensor:
    return torch.cat([weight.grad.flatten() for weight in state.model.parameters() if weight.grad is not None])


# --- what a step is


@pytest.mark.parametrize("balance", ["none", "weights"])
def test_a_step_is_the_same_in_any_number_of_micro_batches(balance: str) -> None:
    """8x1, 4x2 and 2x4 of ragged lengths and unequal weights give the gradient of the whole, and the same weights."""
    rows = [(LETTERS[:n], int(n > 6)) for n in (1, 2, 3, 4, 6, 7, 9, 11)]
    found = []
    for pieces in (1, 2, 3, 4, 8, 100):
        choices = recipe({"balance": balance}, batch_tokens=8 * 13, micro_batches=pieces, clip=0.0, steps=3)
        state = state_of(choices, rows, double=True)
        assert len(batches_of(state, 0)) == min(pieces, 8)
        losses = [report.line["loss"] for report in train(state) if report.line]
        found.append((gradients(state), weights(state), losses))
    assert found[0][0].norm() > 0.01
    for gradient, learnt, losses in found[1:]:
        torch.testing.assert_close(gradient, found[0][0], rtol=0, atol=1e-12)
        assert losses == pytest.approx(found[0][2], abs=1e-12)
        for name, weight in learnt.items():
            torch.testing.assert_close(weight, found[0][1][name], rtol=0, atol=1e-8)


def test_the_gradient_is_that_of_the_weighted_mean_by_hand() -> None:
    """Labels 0, 0, 0, 1 with balance: a 0 counts 4 / (2 x 3), a 1 counts 4 / (2 x 1)."""
    rows = [("bc", 0), ("bcdef", 0), ("cde", 0), ("abcd", 1)]
    choices = recipe({"balance": "weights"}, batch_tokens=64, micro_batches=2, clip=0.0, steps=1, label_smoothing=0.2)
    state = state_of(choices, rows, double=True)
    weights_R = texts(state.train).weights_R
    assert weights_R.tolist() == pytest.approx([4 / 6, 4 / 6, 4 / 6, 4 / 2])
    total = torch.zeros((), dtype=torch.float64)
    for number, (_, label) in enumerate(rows):
        logits = text_logits(state.model, one_example(state, number))[0]
        logs = logits - logits.logsumexp(0)
        loss = -(0.9 * logs[label] + 0.1 * logs[1 - label])  # smoothing 0.2 over two labels
        total = total + float(weights_R[number]) * loss
    total = total / sum(weights_R.tolist())
    total.backward()
    expected = gradients(state)
    (report,) = train(state)
    assert report.line is not None
    assert report.line["loss"] == pytest.approx(total.item(), abs=1e-12)
    torch.testing.assert_close(gradients(state), expected, rtol=0, atol=1e-12)


def test_every_label_counts_alike_also_where_texts_are_read_in_windows() -> None:
    rows = [("abcdefghijk" * 4, 0), ("bc", 1), ("cd", 1)]
    dataset = texts(state_of(recipe({"balance": "weights", "truncation": "windows", "length": 12}), rows).train)
    rows_N = dataset.examples.rows_N
    labels = dataset.labels_R[rows_N]
    assert np.count_nonzero(labels == 0) > 4
    shares = [float(dataset.weights_R[rows_N[labels == label]].sum()) for label in (0, 1)]
    assert shares[0] == pytest.approx(shares[1])
    assert sum(shares) == pytest.approx(len(labels))


def test_a_reported_loss_is_a_mean_over_examples_not_over_batches() -> None:
    """Three batches of different sizes, a learning rate that moves nothing: the mean over all seven examples."""
    rows = labelled(["ab", "bc", "cd", "de", "abcdefgh", "abcdefghi", "bcdefghijk"])
    choices = recipe(batch_tokens=24, learning_rate=1e-30, weight_decay=0.0, epochs=1, report_every=1000)
    state = state_of(choices, rows, double=True)
    sizes = [len(state.train.sampler.batch(n)[1]) for n in range(state.steps)]
    assert len(set(sizes)) > 1
    parts = [CLASSIFY.loss(state.model, one_example(state, n), choices)["labels"] for n in range(7)]
    lines = [report.line for report in train(state) if report.line]
    assert len(lines) == 1
    assert lines[0]["loss"] == pytest.approx(sum(part.item() for part in parts) / 7, abs=1e-12)


def test_the_norm_of_the_gradient_is_clipped_for_the_whole_step() -> None:
    rows = labelled(words(8, seed=1))
    free, clipped = (
        state_of(recipe(batch_tokens=8 * 13, micro_batches=4, clip=clip, steps=1), rows, double=True)
        for clip in (0.0, 0.01)
    )
    for state in (free, clipped):
        list(train(state))
    length = gradients(free).norm()
    assert length > 0.02
    torch.testing.assert_close(gradients(clipped), gradients(free) * (0.01 / length), rtol=1e-4, atol=1e-12)


def test_dropout_is_another_in_every_step_and_every_micro_batch() -> None:
    """Two equal texts, one in each micro-batch, and a learning rate that moves nothing: only dropout differs."""
    choices = recipe(steps=3, batch_tokens=16, micro_batches=2, dropout=0.5, learning_rate=1e-30, report_every=1)
    state = state_of(choices, [("abcdef", 1), ("abcdef", 1)])
    by_hand = np.zeros((3, 2))
    state.model.train()
    for step, piece in np.ndindex(3, 2):
        seed_dropout(choices.seed, step, piece)
        batch = batches_of(state, step)[piece]
        by_hand[step, piece] = CLASSIFY.loss(state.model, batch, choices)["labels"].item()
    assert len(set(by_hand.flatten().tolist())) == 6
    losses = [report.line["loss"] for report in train(state) if report.line]
    assert losses == pytest.approx(by_hand.mean(1).tolist(), abs=1e-7)


def test_a_step_depends_on_its_number_only() -> None:
    state = state_of(recipe(token_dropout=0.3), labelled(words(50, seed=1)))
    last = state.train.sampler.batches * 2 - 1
    before = tokens_of(state, last)
    batches_of(state, 0)
    assert state.train.sampler.batch(last)[0] == 1  # the second epoch
    assert tokens_of(state, last) == before


# --- learning


@pytest.mark.parametrize("family", ["encoder", "decoder"])
def test_a_rule_is_learnt(family: str) -> None:
    choices = recipe(
        model={"family": family}, learning_rate=1e-2, steps=150, batch_tokens=256, warmup=10, dropout=0.1,
        token_dropout=0.02, eval_every=50,
    )  # fmt: skip
    state = state_of(choices, labelled(words(400, seed=1)), labelled(words(200, seed=2)))
    reports = list(train(state))
    losses = [report.line["loss"] for report in reports if report.line]
    assert losses[0] > 0.5
    assert losses[-1] < 0.25
    last = reports[-1].validation
    assert last is not None
    assert last.metrics["accuracy"] > 0.95
    assert last.loss <= last.metrics["raw_loss"]


def test_the_same_seed_gives_the_same_bits_and_another_another() -> None:
    rows = labelled(words(40, seed=1))
    choices = recipe(steps=6, dropout=0.2, token_dropout=0.1, micro_batches=2)
    found = []
    for seed in (1, 1, 2):
        state = state_of(choices.replace(seed=seed), rows)
        start = build_model(choices.model, seed=1, dropout=0.2).state_dict()
        state.model.load_state_dict(start)  # the same beginning: what differs is order, dropout and token dropout
        list(train(state))
        found.append(weights(state))
    assert same(found[0], found[1])
    assert not same(found[0], found[2])


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_looking_at_the_validation_rows_changes_nothing(positions: str) -> None:
    rows, held = labelled(words(40, seed=1)), labelled(words(30, seed=2))
    found = []
    for every in (0, 1):
        choices = recipe(model={"positions": positions}, steps=8, dropout=0.2, token_dropout=0.1, eval_every=every)
        state = state_of(choices, rows, held)
        reports = list(train(state))
        assert sum(report.validation is not None for report in reports) >= (8 if every else 1)
        found.append(weights(state))
    assert same(*found)


def test_validation_leaves_the_mode_and_the_random_state_as_they_were() -> None:
    state = state_of(recipe(dropout=0.5), labelled(words(20, seed=1)), labelled(words(20, seed=2)))
    for mode in (True, False):
        state.model.train(mode)
        before = torch.get_rng_state()
        found = [validate(state) for _ in range(2)]
        assert found[0] == found[1]  # nothing is dropped
        assert state.model.training is mode
        assert torch.equal(torch.get_rng_state(), before)
        assert all(weight.grad is None for weight in state.model.parameters())


# --- validation


def test_logits_of_a_long_row_are_the_mean_over_its_windows() -> None:
    rows = [("abcdefghijk" * 3, 1), ("bcd", 0), ("k", 1), ("cdefghijk" * 2, 0)]
    choices = recipe({"truncation": "windows", "length": 12})
    state = state_of(choices, labelled(words(5, seed=1)), rows, double=True)
    model, dataset = state.model.eval(), texts(state.validation)
    assert np.bincount(dataset.examples.rows_N).tolist() == [6, 1, 1, 3]
    rows_logits = []
    with torch.no_grad():
        for row in range(4):
            numbers = np.flatnonzero(dataset.examples.rows_N == row)
            alone = [text_logits(model, dataset.collate(np.array([n]), EVALUATION))[0] for n in numbers]
            rows_logits.append(torch.stack(alone).mean(0).numpy())
    logits, found = np.array(rows_logits), validate(state)
    assert found is not None
    labels = np.array([1, 0, 1, 0])
    assert found.metrics["raw_loss"] == pytest.approx(calibration.cross_entropy(logits, labels), abs=1e-12)
    assert found.metrics["accuracy"] == metrics.accuracy(logits, labels)
    assert found.by_row["accuracy"].tolist() == (logits.argmax(1) == labels).tolist()
    assert found.by_row["log loss"] == pytest.approx(calibration.cross_entropies(logits, labels), abs=1e-9)
    assert found.temperature == 1.0, "four rows are too few to fit one"
    assert found.loss == found.metrics["raw_loss"]


def test_a_temperature_is_fitted_from_fifty_rows_on() -> None:
    temperatures = []
    for count in (calibration.FEWEST_TO_CALIBRATE - 1, calibration.FEWEST_TO_CALIBRATE):
        held = labelled(words(count, seed=2))
        found = validate(state_of(recipe(), labelled(words(5, seed=1)), held))
        assert found is not None
        temperatures.append(found.temperature)
        assert len(found.by_row["log loss"]) == count
    assert temperatures[0] == 1.0 != temperatures[1]


def test_token_dropout_is_for_training_only() -> None:
    rows, held = labelled(words(20, seed=1)), labelled(words(20, seed=2))
    plain, odd = state_of(recipe(), rows, held), state_of(recipe(token_dropout=0.5), rows, held)
    assert validate(plain) == validate(odd)


def test_validation_weighs_classes_as_training_does() -> None:
    """Of the training rows three have label 0 and one label 1: a 1 counts three times as much, in the loss and in the
    fit of the temperature, whatever the validation rows are."""
    rows = [("bc", 0), ("bcdef", 0), ("cde", 0), ("abcd", 1)]
    held = labelled(words(60, seed=2))
    state = state_of(recipe({"balance": "weights"}), rows, held)
    found, dataset = validate(state), texts(state.validation)
    assert found is not None
    assert sorted(set(dataset.weights_R.tolist())) == pytest.approx([4 / 6, 4 / 2])
    losses, weights_R = found.by_row["log loss"], np.where(dataset.labels_R == 1, 3.0, 1.0)
    assert found.loss == pytest.approx(float((losses * weights_R).sum() / weights_R.sum()), abs=1e-7)
    assert found.loss != pytest.approx(float(losses.mean()), abs=1e-4)


def validated(keep: str, losses: list[float | None]) -> tuple[list[tuple[bool, bool]], list[int], TrainState]:
    """Whether each was the best and whether it was kept; and how long the best was ago."""
    state = state_of(recipe(keep=keep), labelled(words(5, seed=1)))
    best, waited = [], []
    for number, loss in enumerate(losses, 1):
        state.progress.step = 10 * number
        validation = None if loss is None else Validation(loss, {}, temperature=1 + number / 10)
        best.append(_compare_best(state, validation))
        waited.append(state.progress.waited)
    return best, waited, state


def test_the_best_is_kept_with_its_temperature() -> None:
    best, waited, state = validated("best", [0.5, 0.6, 0.4, 0.4, 0.7])
    assert best == [(new, new) for new in (True, False, True, False, False)]  # as good is not better
    assert waited == [0, 1, 0, 1, 2]
    assert (state.progress.best, state.progress.best_step, state.progress.temperature) == (0.4, 30, 1.3)


def test_the_last_is_kept_where_that_is_asked_for_and_patience_counts_the_same() -> None:
    best, waited, state = validated("last", [0.5, 0.6, 0.4, 0.4, 0.7])
    assert best == [(new, True) for new in (True, False, True, False, False)]
    assert waited == [0, 1, 0, 1, 2]
    assert (state.progress.best, state.progress.best_step, state.progress.temperature) == (0.4, 50, 1.5)


def test_without_validation_rows_the_last_is_kept_uncalibrated() -> None:
    best, waited, state = validated("best", [None, None])
    assert best == [(False, True)] * 2
    assert waited == [0, 0]
    assert (state.progress.best, state.progress.best_step, state.progress.temperature) == (None, 20, 1.0)


def misled(**settings: Any) -> tuple[TrainState, list[Report]]:
    """Validation rows with the wrong labels: the more is learnt, the worse they get."""
    held = [(text, 1 - label) for text, label in labelled(words(100, seed=2))]
    choices = recipe(steps=60, eval_every=5, batch_tokens=256, learning_rate=1e-2, schedule="constant", **settings)
    state = state_of(choices, labelled(words(300, seed=1)), held)
    return state, list(train(state))


def test_patience_ends_a_training_that_gets_worse() -> None:
    state, reports = misled(patience=2)
    progress = state.progress
    assert progress.finished
    assert progress.waited == 2
    assert progress.best_step is not None
    assert progress.step == progress.best_step + 10 < 60
    assert [report.save for report in reports][-1]
    assert [report.step for report in reports if report.is_best][-1] == progress.best_step
    losses = {report.step: report.validation.loss for report in reports if report.validation}
    assert progress.best == min(losses.values()) == losses[progress.best_step]
    assert list(train(state)) == []  # what is finished stays so


def test_without_patience_it_goes_on_and_keep_decides() -> None:
    best, reports = misled()
    assert best.progress.step == 60
    assert best.progress.best_step is not None
    assert best.progress.best_step < 60
    assert not reports[-1].keep
    last, reports = misled(keep="last")
    assert last.progress.best_step == 60
    assert (reports[-1].is_best, reports[-1].keep) == (False, True)
    assert same(weights(best), weights(last))  # which is kept does not touch what is learnt


# --- reports


def test_lines_have_the_promised_keys() -> None:
    state = state_of(
        recipe(steps=10, report_every=2, eval_every=5, save_every=4, warmup=4), labelled(words(40, seed=1)),
        labelled(words(20, seed=2)),
    )  # fmt: skip
    reports = list(train(state))
    assert [report.step for report in reports] == list(range(1, 11))
    assert {report.steps for report in reports} == {10}
    assert [report.step for report in reports if report.line] == [2, 4, 5, 6, 8, 10]
    assert [report.step for report in reports if report.validation] == [5, 10]
    assert {4, 8, 10} <= {report.step for report in reports if report.save}
    always = {"step", "epoch", "loss", "learning_rate", "tokens_per_second", "seconds"}
    extra = {f"validation_{name}" for name in ("loss", "raw_loss", "accuracy", "temperature")}
    for report in reports:
        if report.line:
            assert set(report.line) == (always | extra if report.validation else always)
            assert json.loads(json.dumps(report.line)) == report.line
            assert report.line["step"] == report.step
            assert report.line["epoch"] == report.step / state.train.sampler.batches
    rates = [report.line["learning_rate"] for report in reports if report.line]
    assert rates[:2] == pytest.approx([3e-3 / 2, 3e-3])
    assert rates[-1] == pytest.approx(3e-3 / 7)


def test_steps_are_epochs_times_batches_unless_given() -> None:
    rows = labelled(words(40, seed=1))
    state = state_of(recipe(epochs=3), rows)
    assert state.steps == 3 * state.train.sampler.batches
    assert state.eval_every == state.train.sampler.batches > 1
    assert state_of(recipe(epochs=3, steps=7), rows).steps == 7


def test_it_stops_after_the_step_in_which_it_is_asked_to() -> None:
    state = state_of(recipe(steps=10), labelled(words(40, seed=1)))
    asked = iter([False, False, True])
    reports = list(train(state, lambda: next(asked)))
    assert [report.stopped for report in reports] == [False, False, True]
    assert reports[-1].save
    assert not state.progress.finished
    straight = state_of(recipe(steps=10), labelled(words(40, seed=1)))
    list(train(straight))
    assert [report.step for report in train(state)] == list(range(4, 11))
    assert same(weights(state), weights(straight))


# --- what cannot be


def test_a_loss_that_is_not_finite_stops_before_the_step_is_made() -> None:
    """Twelve layers without norms, and steps as large as a recipe allows."""
    choices = recipe(
        model={"norm": "none", "layers": 12, "activation": "relu"},
        learning_rate=10.0, schedule="constant", clip=0.0, steps=50, eval_every=1000,
    )  # fmt: skip
    state = state_of(choices, labelled(words(40, seed=1)))
    kept = [weights(state)]
    with pytest.raises(UserError) as error:
        kept.extend(weights(state) for _ in train(state))
    made, before = state.progress.step, kept[-1]
    assert len(kept) == made + 1
    assert 1 <= made < 49
    assert same(weights(state), before)
    sentence = str(error.value)
    assert sentence.startswith(f"step {made + 1}: the loss is ")
    assert "so the weights were not updated; examples " in sentence
    named = {int(number) for number in sentence.split("examples ")[1].split(", ...")[0].split(", ")}
    assert named <= set(state.train.sampler.batch(made)[1].tolist())
    assert "try a smaller train.learning_rate (now 10.0) or a longer train.warmup (now 0)" in sentence
    assert all(math.isfinite(float(weight.sum())) for weight in before.values())


def plain_words() -> Tokenizer:
    return Tokenizer(tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1})))


def test_token_dropout_needs_a_mask_token() -> None:
    rows = Store(np.array([0, 1], np.uint32), np.array([0, 2]), np.zeros(0, np.int64), np.zeros(1, np.int32), False)
    with pytest.raises(UserError, match=r"^train\.token_dropout needs a tokenizer with a mask token; .* accepted: 0$"):
        text_dataset(recipe(token_dropout=0.1), rows, plain_words())
    plain = text_dataset(recipe(), rows, plain_words())
    assert plain.collate(np.array([0]), 0).tokens_BL.tolist() == [[0, 1]]  # an empty template


def test_a_length_of_special_tokens_only_is_refused() -> None:
    around = tokenizers.Tokenizer.from_str(TOKENIZER.to_json())
    specials = [(token, around.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    around.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] [CLS] $A [SEP] [SEP]", pair=None, special_tokens=specials
    )
    with pytest.raises(UserError, match=r"^data\.length = 4: leaves no room for text beside the special tokens$"):
        text_dataset(recipe({"length": 4}), store_of([("ab", 0)]), Tokenizer(around))


def test_dropped_tokens_become_the_mask_token_and_no_other_changes() -> None:
    state = state_of(recipe(token_dropout=0.5), labelled(words(30, seed=1, longest=20)))
    plain = replace(state, train=replace(texts(state.train), dropout=None))
    changed = []
    for step in range(state.train.sampler.batches):
        for one, other in zip(batches_of(state, step), batches_of(plain, step), strict=True):
            changed += one.tokens_BL[one.tokens_BL != other.tokens_BL].tolist()
    assert set(changed) == {TOKENIZER.id_of("[MASK]")}
