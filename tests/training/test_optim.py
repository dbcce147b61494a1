"""The learning rate is the one the books say, at every step; what must not decay does not."""

import math
from typing import Any

import pytest
import torch

from qkv.config.recipe import TrainConfig
from qkv.model import build_model
from qkv.training.optim import SCHEDULES, build_optimiser, learning_rate, set_learning_rate
from tests.support.tiny_models import SCHEMES, tiny


def rates(steps: int, **settings: Any) -> list[float]:
    train = TrainConfig.read({"learning_rate": 1.0, **settings})
    return [learning_rate(step, train, steps) for step in range(1, steps + 1)]


def test_linear_by_hand() -> None:
    """Up in 2 steps, then down by fifths: the sixth step after the warm-up, which is not made, would have 0."""
    assert rates(6, schedule="linear", warmup=2) == pytest.approx([1 / 2, 1, 4 / 5, 3 / 5, 2 / 5, 1 / 5], abs=1e-15)


def test_cosine_by_hand() -> None:
    expected = [1 / 2, 1, (1 + math.sqrt(1 / 2)) / 2, 1 / 2, (1 - math.sqrt(1 / 2)) / 2]
    assert rates(5, schedule="cosine", warmup=2) == pytest.approx(expected, abs=1e-15)


def test_inverse_sqrt_by_hand() -> None:
    expected = [1 / 4, 2 / 4, 3 / 4, 1, math.sqrt(4 / 5), math.sqrt(4 / 6), math.sqrt(4 / 7), math.sqrt(1 / 2)]
    assert rates(8, schedule="inverse_sqrt", warmup=4) == pytest.approx(expected, abs=1e-15)


def test_constant_by_hand() -> None:
    assert rates(6, schedule="constant", warmup=3) == pytest.approx([1 / 3, 2 / 3, 1, 1, 1, 1], abs=1e-15)


def test_inverse_sqrt_is_the_papers_formula() -> None:
    """Section 5.3: width^-0.5 min(step^-0.5, step warmup^-1.5), warm-up 4,000, here scaled to another peak."""
    train = TrainConfig(schedule="inverse_sqrt", warmup=4000, learning_rate=0.25)
    paper = [512**-0.5 * min(step**-0.5, step * 4000**-1.5) for step in range(1, 20_001)]
    peak = 512**-0.5 * 4000**-0.5
    ours = [learning_rate(step, train, 20_000) for step in range(1, 20_001)]
    assert ours == pytest.approx([0.25 * rate / peak for rate in paper], rel=1e-12)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_edges_of_the_warm_up(schedule: str) -> None:
    assert rates(1, schedule=schedule, warmup=1) == [1.0]
    assert rates(8, schedule=schedule, warmup=100) == rates(8, schedule=schedule, warmup=4)  # half of the steps
    assert rates(8, schedule=schedule, warmup=4)[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates(15, schedule=schedule, warmup=100)[6] == 1.0  # the peak is reached however short the training is
    assert max(rates(50, schedule=schedule, warmup=10)) == rates(50, schedule=schedule, warmup=10)[9] == 1.0
    without = rates(5, schedule=schedule, warmup=0)
    assert 0 < without[-1] <= without[0] <= 1
    assert without == sorted(without, reverse=True)


@pytest.mark.parametrize(("schedule", "first"), [("linear", 5 / 6), ("inverse_sqrt", 1.0), ("constant", 1.0)])
def test_without_warm_up_it_begins_at_once(schedule: str, first: float) -> None:
    assert rates(5, schedule=schedule, warmup=0)[0] == pytest.approx(first)


def test_every_schedule_of_a_recipe_has_a_function() -> None:
    field = TrainConfig.model_fields["schedule"].annotation
    assert set(SCHEDULES) == set(getattr(field, "__args__", ()))


@pytest.mark.parametrize("positions", SCHEMES)
def test_matrices_and_tables_of_tokens_decay_each_at_its_rate_nothing_else_does(positions: str) -> None:
    config = tiny("encoder", positions, segments=2, head="classification", pooler="tanh", embedding_norm=True)
    model = build_model(config)
    names = {id(weight): name for name, weight in model.named_parameters()}
    groups = build_optimiser(model, TrainConfig(weight_decay=0.25, embedding_decay=0.5)).param_groups
    decays = {names[id(weight)]: group["weight_decay"] for group in groups for weight in group["params"]}
    assert sum(len(group["params"]) for group in groups) == len(decays) == len(names)
    maps = ("attention.project", "attention.output", "feed.inner", "feed.output")
    blocks = {f"stack.blocks.{layer}.{part}.weight" for layer in range(2) for part in maps}
    assert {name for name, decay in decays.items() if decay == 0.25} == blocks | {
        "text.dense.weight",
        "text.output.weight",
    }
    assert {name for name, decay in decays.items() if decay == 0.5} == {"embedding.table_VD", "embedding.segments"}
    assert all(decay in (0.0, 0.25, 0.5) for decay in decays.values())


def test_the_tables_of_an_encoder_decoder_are_tables_its_untied_output_is_a_matrix() -> None:
    model = build_model(tiny("encoder-decoder", "learned", tied="none"))
    names = {id(weight): name for name, weight in model.named_parameters()}
    decayed = {names[id(weight)] for weight in build_optimiser(model, TrainConfig()).param_groups[0]["params"]}
    outside = {name for name in decayed if ".blocks." not in name}
    assert outside == {"words.weight"}
    assert any("cross" in name for name in decayed)


def test_settings_reach_the_optimiser_and_decay_is_times_the_learning_rate() -> None:
    model = build_model(tiny("encoder", head="classification"))
    train = TrainConfig(learning_rate=0.5, weight_decay=0.1, embedding_decay=0.2, beta1=0.8, beta2=0.9)
    optimiser = build_optimiser(model, train)
    assert all(group["betas"] == (0.8, 0.9) and group["lr"] == 0.5 for group in optimiser.param_groups)
    set_learning_rate(optimiser, 0.25)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    optimiser.step()
    for name, weight in model.named_parameters():
        decay = 0.2 if name.startswith("embedding.") else 0.0 if weight.ndim == 1 else 0.1
        torch.testing.assert_close(weight.detach(), before[name] * (1 - 0.25 * decay))
