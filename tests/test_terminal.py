"""Tables and curves for a terminal say the same without colour."""

import pytest
from rich.console import Console

from qkv.calibration import Bin
from qkv.cli.eval import reliability_table
from qkv.terminal import distinguishable, sparkline


def test_a_table_says_where_predictions_are_overconfident() -> None:
    found = [Bin(0.5, 0.6, 0, 0, 0), Bin(0.6, 0.7, 1200, 0.65, 0.58), Bin(0.7, 0.8, 7, 0.75, 0.76),
             Bin(0.8, 0.9, 1, 0.85, 1.0)]  # fmt: skip
    console = Console(width=80)
    with console.capture() as captured:
        console.print(reliability_table(found))
    assert [" ".join(line.split()) for line in captured.get().splitlines()] == [
        "confidence predictions mean accuracy gap",
        "0.60 to 0.70 1,200 0.650 0.580 -0.070 overconfident",
        "0.70 to 0.80 7 0.750 0.760 +0.010",
        "0.80 to 0.90 1 0.850 1.000 +0.150 underconfident",
    ]


@pytest.mark.parametrize(
    ("values", "line"),
    [([0.0, 7.0, 3.0], "▁█▄"), ([2.0], "▄"), ([5.0, 5.0], "▄▄"), ([1.0, 0.5, 0.0], "█▅▁")],
)
def test_a_sparkline_goes_from_the_least_to_the_most(values: list[float], line: str) -> None:
    assert sparkline(values) == line


def test_a_long_sparkline_keeps_24_points_with_both_ends() -> None:
    long = sparkline([float(n) for n in range(1000)])
    assert len(long) == 24
    assert (long[0], long[-1]) == ("▁", "█")
    assert list(long) == sorted(long)


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["good", "bad"], ["good", "bad"]),
        (["a long name indeed", "short"], ["a l…eed", "short"]),
        (["the same of all", "the sins of all", "b"], ["1 th…ll", "2 th…ll", "b"]),
        (["1 th…ll", "the sins of all", "the same of all"], ["1 th…ll", "2 th…ll", "3 th…ll"]),
        (["x" * 9, "x" * 9, "1 xx…xx"], ["1 xx…xx", "2 xx…xx", "3 1 …xx"]),
    ],
)
def test_short_names_are_never_alike(names: list[str], shown: list[str]) -> None:
    found = distinguishable(names, 7)
    assert found == shown
    assert len(set(found)) == len(names)
