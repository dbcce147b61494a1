"""What `qkv plan` says is what the model really is: counted, and compared with torch's own counter and autograd."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from qkv import plan
from qkv.config import presets, recipes
from qkv.config.recipe import Family, ModelConfig, Positions, Recipe
from qkv.model import EncoderDecoder, build_model, lay_out, plain
from qkv.schema import UserError

LENGTH = 11
FAMILIES: list[Family] = ["encoder", "decoder", "encoder-decoder"]
SCHEMES: list[Positions] = ["none", "sinusoidal", "learned", "relative", "t5", "alibi", "rotary"]


def config(family: Family, **changes: object) -> ModelConfig:
    sizes = {"vocabulary": 19, "width": 13, "heads": 3, "head_width": 10, "layers": 2, "feedforward": 17, "context": 23}
    return ModelConfig.read({"family": family, "head": "tokens", **sizes, **changes})


@pytest.mark.parametrize("name", presets.names())
def test_the_parts_add_up(name: str) -> None:
    whole = sum(weight.numel() for weight in lay_out(presets.load(name)).parameters())
    assert sum(plan.parameters(presets.load(name)).values()) == whole


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("changes", [{}, {"activation": "swiglu"}, {"kv_heads": 1}, {"positions": "relative"}])
def test_formulas_equal_torchs_own_counter(family: Family, changes: dict[str, object]) -> None:
    """One row of LENGTH tokens, logits at all positions; plain attention, which the counter understands."""
    chosen = config(family, **changes)
    model = build_model(chosen)
    tokens = torch.zeros(1, LENGTH, dtype=torch.long)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        inputs = (tokens, tokens) if isinstance(model, EncoderDecoder) else (tokens,)
        model.logits(model(*inputs, attend=plain))
    assert sum(plan.flops(chosen, LENGTH).values()) * LENGTH == counter.get_total_flops()


def test_training_costs_three_forward_passes() -> None:
    """A product has two gradients, each a product of the same size."""
    chosen = config("decoder")
    model = build_model(chosen)
    with FlopCounterMode(display=False) as counter:
        model.logits(model(torch.zeros(1, LENGTH, dtype=torch.long), attend=plain)).sum().backward()
    assert plan.Cost.at(chosen, LENGTH).training * LENGTH == counter.get_total_flops()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_memory_for_activations_is_what_a_real_pass_keeps(family: Family, scheme: Positions) -> None:
    """The same hook on real tensors. Scalars and a few bytes of bookkeeping may differ, hence 1%."""
    task = {"encoder": "fill", "decoder": "complete", "encoder-decoder": "translate"}[family]
    model_keys = config(family, positions=scheme).model_dump()
    recipe = Recipe.read({"task": task, "model": model_keys, "train": {"batch_tokens": 4 * LENGTH, "dropout": 0.1}})
    memory = plan.measure_memory(recipe, LENGTH)
    model = build_model(recipe.model, dropout=0.1)
    own = {weight.data_ptr() for weight in model.parameters()}
    kept: dict[int, int] = {}
    alive: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        alive.append(tensor)
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        plan._training_loss(model, memory.rows, LENGTH)
    assert memory.activations == pytest.approx(sum(kept.values()), rel=0.01)


def test_memory_grows_with_the_batch_and_shrinks_with_micro_batches() -> None:
    recipe = recipes.resolve("bert-tiny")
    large = recipes.resolve("bert-tiny", ["train.batch_tokens=8192"])
    split = recipes.resolve("bert-tiny", ["train.batch_tokens=8192", "train.micro_batches=2"])
    small, big, half = (plan.measure_memory(r, 128) for r in (recipe, large, split))
    assert big.activations > 1.9 * small.activations
    assert half.activations == small.activations
    assert (small.weights, small.optimiser) == (4 * 4_385_920, 8 * 4_385_920)


def test_attention_is_the_part_that_grows_with_length() -> None:
    short, long = (plan.flops(presets.load("bert-base"), n) for n in (128, 512))
    assert [part for part in short if short[part] != long[part]] == ["attention"]
    assert long["attention"] == 4 * short["attention"]


@pytest.mark.parametrize("length", [0, -1, 513])
def test_a_length_the_model_cannot_have_is_refused(length: int) -> None:
    with pytest.raises(UserError, match=f"length = {length}: must be at least 1 and at most 512 for this model"):
        plan.make_plan(recipes.resolve("bert-base"), length)


def test_the_largest_preset_is_planned_without_its_memory() -> None:
    made = plan.make_plan(recipes.resolve("llama2-7b"))
    assert made.total == 6_738_415_616
    assert made.memory.weights == 4 * made.total
