"""Sampling: probabilities as they should be, restricted as asked, the same for the same numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from qkv.predict.decode import greedy, sample

SHARES = torch.tensor([0.02, 0.4, 0.08, 0.2, 0.3])


def chosen(temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, rows: int = 20_000) -> Tensor:
    """How often each token comes, over numbers that fill the range from 0 to 1 evenly."""
    choose = sample(lambda rows_N, position: (rows_N + 0.5) / rows, temperature=temperature, top_k=top_k, top_p=top_p)
    tokens_N = choose(SHARES.log().expand(rows, -1), torch.arange(rows), 0)
    return torch.bincount(tokens_N, minlength=5) / rows


def test_shares_are_the_models_own() -> None:
    assert torch.allclose(chosen(), SHARES, atol=1e-4)


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_temperature_sharpens_or_flattens(temperature: float) -> None:
    wanted = SHARES ** (1 / temperature)
    assert torch.allclose(chosen(temperature), wanted / wanted.sum(), atol=1e-4)


def test_top_k_leaves_the_most_probable() -> None:
    assert torch.allclose(chosen(top_k=2), torch.tensor([0, 0.4, 0, 0, 0.3]) / 0.7, atol=1e-4)
    assert torch.allclose(chosen(top_k=99), SHARES, atol=1e-4)


@pytest.mark.parametrize(
    ("top_p", "left"), [(0.39, [1]), (0.41, [1, 4]), (0.69, [1, 4]), (0.71, [1, 3, 4]), (1e-9, [1])]
)
def test_top_p_leaves_as_few_as_have_that_probability(top_p: float, left: list[int]) -> None:
    wanted = torch.zeros(5)
    wanted[left] = SHARES[left]
    assert torch.allclose(chosen(top_p=top_p), wanted / wanted.sum(), atol=1e-4)


def test_top_k_is_taken_before_top_p() -> None:
    """Of the two left, the first has 4/7: more than half."""
    assert chosen(top_k=2, top_p=0.5).tolist() == [0, 1, 0, 0, 0]


@pytest.mark.parametrize("number", [0.0, 1.0 - 2**-53])
def test_the_ends_of_the_range_are_possible_tokens(number: float) -> None:
    logits_NV = torch.tensor([[-torch.inf, 1.0, -torch.inf, 0.0]])
    choose = sample(lambda rows_N, position: torch.full((1,), number, dtype=torch.float64))
    assert choose(logits_NV, torch.arange(1), 0).item() in (1, 3)


def test_a_row_draws_by_its_own_number_and_position_whatever_its_batch() -> None:
    """Rows that end leave the others' numbers alone: an answer does not depend on its neighbours."""
    asked = []

    def draw(rows_N: Tensor, position: int) -> Tensor:
        asked.append((rows_N.tolist(), position))
        return torch.tensor([0.1 if row == 0 else 0.99 for row in rows_N.tolist()])

    logits_NV = torch.tensor([[0.7, 0.3], [0.7, 0.3]]).log()
    steps = list(
        greedy(
            lambda tokens_N, origin_N, cache: (logits_NV[: len(tokens_N)], cache),
            logits_NV, None, end=(1,), limit=3, choose=sample(draw),
        )
    )  # fmt: skip
    assert asked == [([0, 1], 0), ([0], 1), ([0], 2)]
    assert [one.tokens_N.tolist() for one in steps] == [[0, 1], [0], [0]]
    assert torch.allclose(steps[0].log_probabilities_N.exp(), torch.tensor([0.7, 0.3]))
