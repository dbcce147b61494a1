"""The arithmetic shown to people is the arithmetic of the model."""

from __future__ import annotations

import pytest
import torch
from rich.console import Console

from qkv import terminal
from qkv.cli.explain import ASKER, SENTENCE, hand_made_head
from qkv.explain.worked_head import look_inside, work_through
from qkv.model.attention import Attention
from qkv.model.masks import causal


def random_attention(scale: str = "sqrt") -> Attention:
    torch.manual_seed(3)
    return Attention(
        width=13, heads=3, kv_heads=3, head_width=5, score="dot", scale=scale, bias=True, dropout=0.0
    ).double()


@pytest.mark.parametrize("scale", ["sqrt", "none", "full"])
def test_worked_by_hand_equals_the_fused_kernel(scale: str) -> None:
    inside = look_inside(random_attention(scale), torch.randn(7, 13, dtype=torch.float64))
    for head in range(3):
        for position in range(7):
            worked = work_through(inside, position, head)
            assert worked.weights == pytest.approx(inside.weights_HLL[head, position].tolist(), abs=1e-12)
            assert worked.output == pytest.approx(inside.mixed_HLK[head, position].tolist(), abs=1e-12)


def test_the_hand_made_head_finds_the_animal() -> None:
    """Hand numbers: q.k = 6 for the animal, 0 for the other eight; e^(6/sqrt 2) = 69.59; 69.59 / 77.59 = 0.897."""
    attention, x_LD = hand_made_head()
    worked = work_through(look_inside(attention, x_LD), ASKER)
    animal = SENTENCE.index("animal")
    assert worked.products == [6.0 if i == animal else 0.0 for i in range(len(SENTENCE))]
    assert worked.exponentials[animal] == pytest.approx(69.591, abs=5e-4)
    assert worked.weights[animal] == pytest.approx(0.897, abs=5e-4)
    assert sum(worked.weights) == pytest.approx(1.0)


def test_a_causal_mask_hides_the_future_exactly() -> None:
    attention, x_LD = hand_made_head()
    pos = torch.arange(len(SENTENCE))[None]
    weights = look_inside(attention, x_LD, keep=causal(pos, pos)).weights_HLL[0]
    assert torch.equal(weights.triu(1), torch.zeros_like(weights))
    assert torch.allclose(weights.sum(-1), torch.ones(len(SENTENCE)))


@pytest.mark.parametrize(
    ("share", "text"), [(0.0, ""), (1.0, "█" * 8), (0.5, "████"), (1 / 64, "▏"), (-3.0, ""), (7.0, "█" * 8)]
)
def test_bars_are_exact_to_an_eighth(share: float, text: str) -> None:
    assert terminal.bar(share, width=8) == text


def test_a_heat_map_shows_numbers_and_marks_what_is_hidden() -> None:
    console = Console(width=60)
    with console.capture() as captured:
        console.print(terminal.heat_map(["a", "b"], ["x", "y"], [[1.0, 0.0], [0.25, 0.75]], "title"))
    text = captured.get()
    assert "title" in text
    assert [line.split() for line in text.splitlines()[2:4]] == [["a", "1.00", "·"], ["b", ".25", ".75"]]


@pytest.mark.parametrize(("number", "text"), [(999, "999"), (1000, "1.0 k"), (63_082_496, "63.1 M"), (2e13, "20.0 T")])
def test_numbers_as_people_say_them(number: float, text: str) -> None:
    assert terminal.readable(number) == text


@pytest.mark.parametrize(("count", "text"), [(1023, "1023 bytes"), (2**20, "1.0 MiB"), (3 * 2**40, "3.0 TiB")])
def test_sizes_as_people_say_them(count: int, text: str) -> None:
    assert terminal.readable_bytes(count) == text
