"""The numbers that are chosen for a table: they grow with it, and never ask for more work than allowed."""

from __future__ import annotations

import pytest

from qkv.autotrain import rules
from qkv.autotrain.rules import Start, epochs_for, fine_tuning, folds_for, length_for
from qkv.config.recipe import Recipe

MINILM = Start("minilm", 384, 6, 1536, 512)
BERT = Start("bert", 768, 12, 3072, 512)
SIZES = (8, 50, 200, 1000, 1500, 1501, 5000, 25_000, 1_000_000)


@pytest.mark.parametrize("rows", SIZES)
@pytest.mark.parametrize("start", [MINILM, BERT])
@pytest.mark.parametrize("length", [1, 25, 5000])
def test_the_choice_is_a_valid_recipe_of_bounded_work(rows: int, start: Start, length: int) -> None:
    found = fine_tuning(rows, [length] * 10, 0.5, start)
    recipe = Recipe.read({"init": start.init, **found})
    recipe.check()
    train = recipe.train
    assert train.warmup < train.steps
    assert train.batch_tokens >= recipe.data.length
    work = train.steps * train.batch_tokens * start.work_per_token
    assert work <= 1.1 * rules.MOST_WORK or train.steps == rules.FEWEST_STEPS


def test_few_rows_are_cross_validated_and_many_are_split() -> None:
    assert [folds_for(rows) for rows in (50, 600, 601, 1500, 1501)] == [5, 5, 3, 3, 0]
    assert [fine_tuning(rows, [20], 0.5, MINILM)["data"]["validation"] for rows in (1500, 1501)] == ["none", "split"]


def test_more_rows_are_more_examples_and_fewer_epochs() -> None:
    sizes = range(10, 20_000, 10)
    seen = [rows * epochs_for(rows) for rows in sizes]
    assert seen == sorted(seen)
    assert [round(epochs_for(rows), 1) for rows in (1, 200, 1000, 5000)] == [12.0, 5.3, 3.0, 2.0]
    steps = [fine_tuning(rows, [20], 0.5, MINILM)["train"]["steps"] for rows in (50, 200, 1000, 5000)]
    assert steps == sorted(steps)


def test_the_length_holds_nearly_all_texts_and_the_encoder_bounds_it() -> None:
    assert length_for([10] * 96 + [400] * 4, MINILM, 2) == 16
    assert length_for([100] * 100, MINILM, 2) == 112
    assert length_for([3000] * 100, MINILM, 2) == rules.LONGEST
    assert length_for([3000] * 100, Start("short", 64, 1, 64, 40), 2) == 40


def test_long_texts_keep_both_ends_and_rare_labels_weigh_more() -> None:
    assert fine_tuning(500, [3000], 0.5, MINILM)["data"]["truncation"] == "head+tail"
    assert fine_tuning(500, [30], 0.5, MINILM)["data"]["truncation"] == "head"
    assert [fine_tuning(500, [30], share, MINILM)["data"]["balance"] for share in (0.05, 0.1, 0.0)] == [
        "weights",
        "none",
        "none",
    ]
