"""Lower layers learn slower, or not at all; and regression metrics, by hand."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from qkv.config.recipe import Recipe, TrainConfig
from qkv.data.store import Store
from qkv.metrics import regression_metrics
from qkv.model import Model, build_model
from qkv.schema import UserError
from qkv.tasks import TASKS
from qkv.tasks.texts import text_dataset
from qkv.tokenizer.train import train_tokenizer
from qkv.training.loop import TrainState, new_state, train
from qkv.training.optim import build_optimiser, optimiser_tensors, restore_optimiser, set_learning_rate
from tests.support.tiny_models import SCHEMES, tiny

LETTERS = "abcdefghijk"
TOKENIZER = train_tokenizer([LETTERS], kind="characters", vocab_size=20, lowercase=True)


def bert(layers: int = 3, positions: str = "learned", **changes: Any) -> Model:
    parts = {"segments": 2, "head": "pretraining", "pooler": "tanh", "embedding_norm": True, "norm_place": "pre"}
    return build_model(tiny("encoder", positions, **{**parts, "layers": layers, **changes}), seed=1)


def height(name: str, layers: int) -> int:
    """By hand: tables and what is done to them are 0, the layers 1 to `layers`, all that follows one more."""
    if name.startswith("stack.blocks."):
        return 1 + int(name.split(".")[2])
    below = ("embedding.table_VD", "embedding.segments", "stack.embedding_norm.", "stack.positions.")
    return 0 if name.startswith(below) else layers + 1


def rates(model: Model, optimiser: torch.optim.Optimizer) -> dict[str, float]:
    names = {id(weight): name for name, weight in model.named_parameters()}
    found = [(names[id(weight)], group["lr"]) for group in optimiser.param_groups for weight in group["params"]]
    assert len(found) == len(dict(found))
    return dict(found)


# --- layers that learn slower


@pytest.mark.parametrize("positions", SCHEMES)
@pytest.mark.parametrize("layers", [1, 3])
def test_each_layer_learns_slower_than_the_one_above(layers: int, positions: str) -> None:
    model = bert(layers, positions)
    optimiser = build_optimiser(model, TrainConfig(layer_decay=0.5))
    for rate in (0.25, 0.125, 1.0):
        set_learning_rate(optimiser, rate)
        found = rates(model, optimiser)
        assert found == {
            name: rate * 0.5 ** (layers + 1 - height(name, layers)) for name, _ in model.named_parameters()
        }
    assert {found[name] for name in found if name.startswith(("words.", "text.", "stack.final_norm."))} == {1.0}
    assert found["embedding.table_VD"] == found["stack.embedding_norm.weight"] == 0.5 ** (layers + 1)


def test_the_layers_of_an_encoder_decoder_by_their_number() -> None:
    model = build_model(tiny("encoder-decoder", "learned", tied="none"))
    optimiser = build_optimiser(model, TrainConfig(layer_decay=0.5))
    set_learning_rate(optimiser, 1.0)
    found = rates(model, optimiser)
    for side in ("encoder", "decoder"):
        assert {rate for name, rate in found.items() if name.startswith(f"{side}.blocks.0.")} == {0.25}
        assert {rate for name, rate in found.items() if name.startswith(f"{side}.blocks.1.")} == {0.5}
        assert found[f"{side}.positions.table"] == 0.125
    assert found["embedding.table_VD"] == found["target.table_VD"] == 0.125
    assert found["words.weight"] == 1.0


def test_without_decay_all_learn_alike_and_groups_keep_their_weight_decay() -> None:
    model = bert()
    optimiser = build_optimiser(model, TrainConfig())
    set_learning_rate(optimiser, 0.25)
    assert set(rates(model, optimiser).values()) == {0.25}
    assert len(optimiser.param_groups) == 3
    slower = build_optimiser(model, TrainConfig(layer_decay=0.5, weight_decay=0.25, embedding_decay=0.125, freeze=2))
    names = {id(weight): name for name, weight in model.named_parameters()}
    for group in slower.param_groups:
        for weight in group["params"]:
            name = names[id(weight)]
            assert height(name, 3) >= 2
            assert group["weight_decay"] == (0.25 if weight.ndim > 1 else 0.0), name


def test_a_step_moves_each_layer_by_its_own_rate() -> None:
    """The first step of Adam is the rate times the sign of the gradient, whatever its size."""
    model = bert(2)
    optimiser = build_optimiser(model, TrainConfig(layer_decay=0.5, weight_decay=0.0, embedding_decay=0.0))
    set_learning_rate(optimiser, 2.0**-7)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    optimiser.step()
    for name, weight in model.named_parameters():
        moved = before[name] - weight.detach()
        expected = torch.full_like(moved, 2.0**-7 * 0.5 ** (3 - height(name, 2)))
        torch.testing.assert_close(moved, expected, rtol=1e-3, atol=1e-6)


# --- layers that do not learn


def state(**settings: Any) -> TrainState:
    dice = random.Random(1)
    texts = ["".join(dice.choices(LETTERS, k=dice.randint(2, 9))) for _ in range(24)]
    ids = TOKENIZER.ids(texts)
    starts = np.cumsum([0, *(len(one) for one in ids)]).astype(np.int64)
    labels = np.array([int("a" in text) for text in texts], np.int32)
    store = Store(
        np.array([token for one in ids for token in one], np.uint32), starts, np.zeros(0, np.int64), labels, pairs=False
    )
    small = {
        "vocabulary": TOKENIZER.size, "width": 16, "heads": 2, "layers": 2, "feedforward": 19, "head": "classification",
        "positions": "learned", "context": 16, "embedding_norm": True, "norm_place": "pre", "pooler": "tanh",
    }  # fmt: skip
    learning = {"dropout": 0.0, "warmup": 0, "batch_tokens": 64, "steps": 4, "learning_rate": 0.01, **settings}
    choices = Recipe.read({"data": {"length": 16}, "model": small, "train": learning})
    dataset = replace(text_dataset(choices, store, TOKENIZER), labels_R=labels.astype(np.int64))
    return new_state(build_model(choices.model, seed=1), choices, TASKS["classify"], dataset, dataset)


@pytest.mark.parametrize("layer_decay", [1.0, 0.5])
@pytest.mark.parametrize("freeze", [0, 1, 2, 3])
def test_what_is_frozen_stays_to_the_bit_and_everything_else_moves(freeze: int, layer_decay: float) -> None:
    one = state(freeze=freeze, layer_decay=layer_decay)
    before = {name: weight.detach().clone() for name, weight in one.model.named_parameters()}
    assert len(list(train(one))) == 4
    for name, weight in one.model.named_parameters():
        assert torch.equal(weight, before[name]) == (height(name, 2) < freeze), name
        assert weight.requires_grad == (height(name, 2) >= freeze)
    assert {height(name, 2) for name in before} == {0, 1, 2, 3}


@pytest.mark.parametrize(("layers", "freeze"), [(1, 3), (3, 5), (3, 1001)])
def test_to_freeze_everything_is_an_error(layers: int, freeze: int) -> None:
    with pytest.raises(UserError) as caught:
        build_optimiser(bert(layers), TrainConfig(freeze=freeze))
    assert str(caught.value) == f"train.freeze = {freeze}: nothing is left to train; accepted: 0 to {layers + 1}"
    assert build_optimiser(bert(layers), TrainConfig(freeze=layers + 1)).param_groups


def test_what_was_frozen_before_learns_again() -> None:
    model = bert()
    build_optimiser(model, TrainConfig(freeze=3))
    assert len(rates(model, build_optimiser(model, TrainConfig()))) == len(list(model.parameters()))
    assert all(weight.requires_grad for weight in model.parameters())


def test_an_optimiser_with_frozen_layers_resumes_to_the_same_bits() -> None:
    whole, begun = state(freeze=2, layer_decay=0.5), state(freeze=2, layer_decay=0.5)
    list(train(whole))
    steps = train(begun)
    next(steps)
    next(steps)
    later = state(freeze=2, layer_decay=0.5)
    later.model.load_state_dict(begun.model.state_dict())
    restore_optimiser(later.optimiser, later.model, optimiser_tensors(begun.optimiser, begun.model))
    later.progress = begun.progress
    list(train(later))
    for one, other in zip(whole.model.parameters(), later.model.parameters(), strict=True):
        assert torch.equal(one, other)


# --- regression metrics


def regression(predictions: list[float], targets: list[float]) -> tuple[float, float, float, float]:
    error, found = regression_metrics(predictions, targets)
    return error, found["pearson"], found["spearman"], found["rmse"]


@pytest.mark.parametrize(
    ("predictions", "targets", "expected"),
    [
        ([1, 2, 3, 4], [1, 2, 3, 4], (0, 1, 1, 0)),
        ([1, 2, 3, 4], [4, 3, 2, 1], (5, -1, -1, 5**0.5)),
        ([1, 2, 3, 4], [2, 1, 4, 3], (1, 0.6, 0.6, 1)),  # 3 / 5
        ([1, 2, 3], [1, 4, 9], (40 / 3, 8 / (2 * 98 / 3) ** 0.5, 1, (40 / 3) ** 0.5)),  # curved, but always rising
        ([1, 2, 2, 3], [1, 3, 2, 4], (0.5, 3 / 10**0.5, 4.5 / 22.5**0.5, 0.5**0.5)),  # ranks 1, 2.5, 2.5, 4
        ([5, 5, 1, 1], [2, 2, 2, 7], (55 / 4, -10 / (16 * 18.75) ** 0.5, -2 / 12**0.5, 13.75**0.5)),
    ],
)
def test_regression_metrics_by_hand(
    predictions: list[float], targets: list[float], expected: tuple[float, ...]
) -> None:
    assert regression(predictions, targets) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("same", [0.0, 2.0, 0.1, 0.7])
def test_equal_numbers_have_no_correlation(same: float) -> None:
    """The mean of three times 0.1 is not 0.1 to the last bit."""
    for predictions, targets in (([same] * 3, [1.0, 2.0, 4.0]), ([1.0, 2.0, 4.0], [same] * 3), ([same] * 3, [0.1] * 3)):
        assert regression(predictions, targets)[1:3] == pytest.approx((0.0, 0.0), abs=1e-12)
    assert regression([same], [3.0])[1:3] == (0.0, 0.0)


def test_correlations_are_numpys_and_ranks_do_not_mind_the_scale() -> None:
    dice = np.random.Generator(np.random.PCG64(1))
    x = dice.normal(size=200)
    y = x + dice.normal(size=200)
    error, found = regression_metrics(x, y)
    assert error == pytest.approx(float(((x - y) ** 2).mean()))
    assert found["pearson"] == pytest.approx(float(np.corrcoef(x, y)[0, 1]), abs=1e-12)
    one, other = (np.argsort(np.argsort(values)) for values in (x, y))
    assert found["spearman"] == pytest.approx(float(np.corrcoef(one, other)[0, 1]), abs=1e-12)
    assert regression_metrics(np.exp(x), y)[1]["spearman"] == pytest.approx(found["spearman"], abs=1e-12)
    assert regression_metrics(3 * x - 5, y)[1]["pearson"] == pytest.approx(found["pearson"], abs=1e-12)
