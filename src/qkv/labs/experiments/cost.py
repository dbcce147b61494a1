"""What attention costs, counted and timed: where n squared counts, and where it does not."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from qkv.config.recipe import ModelConfig
from qkv.labs.baselines import Convolution, Recurrence
from qkv.labs.lab import Claim, Lab, Measured, Rule, Setting
from qkv.model.attention import Attention, How, View, dot, plain
from qkv.model.build import build_model
from qkv.model.dropout import Dropout
from qkv.model.transformer import Encoder
from qkv.plots import COLOURS, DASHES, MARKS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LENGTH, WIDTH, INNER, REACH = 96, 64, 256, 3
LENGTHS, WIDTHS = (1024, 1536, 2048, 3072), (256, 512, 1024, 2048)  # large enough for the products to take the time
FEW = (16, 32, 64, 128)  # and too small
HOW = How(dot, None, None, Dropout(0.0))
VIEW = View(attend=plain)


def counted(work: Callable[[], object]) -> float:
    """Floating-point operations, as torch counts them: two for each multiplication with addition."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        work()
    return float(counter.get_total_flops())


def pair_products(n: int, d: int) -> Callable[[], Tensor]:
    """(i) Q K^T and the weights times V, nothing else."""
    q, k, v = (torch.randn(1, 1, n, d) for _ in range(3))
    return lambda: plain(q, k, v, HOW)


def layer(n: int, d: int) -> Callable[[], object]:
    """(ii) Attention with its four projections."""
    part = Attention(width=d, heads=1, kv_heads=1, head_width=d, score="dot", scale="sqrt", bias=False, dropout=0.0)
    x = torch.randn(1, n, d)
    return lambda: part(x, VIEW)


def block(n: int, d: int, f: int) -> Callable[[], object]:
    """(iii) A whole block of an encoder."""
    config = ModelConfig(family="encoder", vocabulary=10, width=d, heads=1, layers=1, feedforward=f, bias=False)
    model = build_model(config)
    assert isinstance(model, Encoder)
    x = torch.randn(1, n, d)
    return lambda: model.stack.blocks[0](x, VIEW)


def seconds(work: Callable[[], object], rounds: int) -> float:
    times = []
    with torch.no_grad():
        for _ in range(rounds + 1):
            start = time.perf_counter()
            work()
            times.append(time.perf_counter() - start)
    return min(times[1:])  # the one that was disturbed least


def exponent(sizes: Sequence[int], times: Sequence[float]) -> float:
    """The power of the size that the time grows with: the slope of a line through their logarithms."""
    x, y = ([math.log(value) for value in values] for values in (sizes, times))
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    rise = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return rise / sum((a - mean_x) ** 2 for a in x)


def measure(setting: Setting) -> Measured:
    n, d, f, k = LENGTH, WIDTH, INNER, REACH
    pairs, whole, all_of_it = counted(pair_products(n, d)), counted(layer(n, d)), counted(block(n, d, f))
    recurrent, convolution = Recurrence(d), Convolution(d, k)
    x = torch.randn(1, n, d)
    step_by_step, sliding = counted(lambda: recurrent(x)), counted(lambda: convolution(x))
    rounds = 9 if setting.full else 6
    by_few = [seconds(pair_products(size, WIDTH), rounds) for size in FEW]
    by_length = [seconds(pair_products(size, WIDTHS[0]), rounds) for size in LENGTHS]
    setting.tick("timed by length")
    by_width = [seconds(pair_products(1024, size), rounds) for size in WIDTHS]
    setting.tick("timed by width")
    q, keys = torch.randn(1, 1, n, d), torch.randn(1, 1, n, d)
    return Measured(
        effects={
            "pairs": pairs / (4 * n**2 * d),
            "layer": whole / (8 * n * d**2 + 4 * n**2 * d),
            "block": all_of_it / (8 * n * d**2 + 4 * n**2 * d + 4 * n * d * f),
            "recurrent": step_by_step / (4 * n * d**2),
            "convolution": sliding / (2 * k * n * d**2),
            "power-n": exponent(LENGTHS, by_length),
            "power-d": exponent(WIDTHS, by_width),
            "steps": recurrent.steps(x),
            "shape": float(dot(q, keys).numel()) / n**2,
            "cross": counted(pair_products(d, d)) / counted(lambda: recurrent(x[:, :d])),
            "no-cross": counted(layer(d, d)) / counted(lambda: recurrent(x[:, :d])),
        },
        figures={
            "n": n,
            "d": d,
            "exponent of n from 16 to 128 words, where other things take the time": exponent(FEW, by_few),
            **{f"seconds at n = {a}": b for a, b in zip(LENGTHS, by_length, strict=True)},
        },
        series={"by length": by_length, "by width": by_width},
    )


def draw(figure: Figure, measured: Sequence[Measured]) -> None:
    left, right = figure.subplots(1, 2)
    d, sizes = 512, [2**power for power in range(5, 14)]
    curves = {
        "(i) Q K^T and A V": [4 * n**2 * d for n in sizes],
        "(ii) with projections": [8 * n * d**2 + 4 * n**2 * d for n in sizes],
        "(iii) the block": [24 * n * d**2 + 4 * n**2 * d for n in sizes],
        "recurrent": [4 * n * d**2 for n in sizes],
    }
    for number, (name, values) in enumerate(curves.items()):
        left.plot(sizes, values, color=COLOURS[number], linestyle=DASHES[number], label=name)
    left.axvline(d, color="#777777", linewidth=0.8)
    left.set_xscale("log", base=2)
    left.set_yscale("log")
    left.set_xlabel("length n, at width d = 512 (line: n = d)")
    left.set_ylabel("operations")
    left.legend(frameon=False, fontsize=9)
    for number, one in enumerate(measured):
        right.plot(LENGTHS, one.series["by length"], color=COLOURS[0], marker=MARKS[number], linestyle="", alpha=0.8)
    first = measured[0].series["by length"][0]
    right.plot(LENGTHS, [first * (n / LENGTHS[0]) ** 2 for n in LENGTHS], color="#777777", label="n squared")
    right.set_xscale("log", base=2)
    right.set_yscale("log")
    right.set_xlabel("length n (marks: seeds)")
    right.set_ylabel(f"seconds for (i), width {WIDTHS[0]}")
    right.legend(frameon=False)


LAB = Lab(
    name="cost",
    question="What does self-attention cost, beside recurrence and convolution?",
    usual="n^2 d against n d^2: attention is cheaper where n < d.",
    answer="That is true of Q K^T and A V alone. With its projections attention costs 8 n d^2 + 4 n^2 d, which is "
    "never less than a recurrence of the same width; its gain is that nothing has to wait.",
    paragraphs=(
        "The comparison in the 2017 paper counts what attention does with pairs of words: Q K^T, an n by n table, and "
        "the weights times V. Each is n x n x d multiplications, two operations each. A recurrence has a d by d matrix "
        "for every word and for the state before it. The two are equal where n = d.",
        "A real layer also projects: four matrices of d by d for every word, and the block has the feed-forward part "
        "besides. Then there is no length at which attention is cheaper. What it saves is waiting: a recurrence needs "
        "n steps, each of which waits for the one before; attention needs one. The lab counts with torch's own "
        "counter, and times (i) at sizes where arithmetic, not overhead, decides.",
    ),
    formula="(i) 4 n^2 d   (ii) 8 n d^2 + 4 n^2 d   (iii) (ii) + 4 n d f   recurrent 4 n d^2   convolution 2 k n d^2",
    claims=(
        Claim(
            "pairs",
            "(i) Q K^T and A V take 4 n^2 d operations.",
            "Vaswani et al. 2017, table 1",
            "operations counted, in units of the formula",
            Rule(1, 1),
        ),
        Claim("layer", "(ii) With projections it is 8 n d^2 + 4 n^2 d.", "counted", "the same", Rule(1, 1)),
        Claim("block", "(iii) The block has 4 n d f more.", "counted", "the same", Rule(1, 1)),
        Claim(
            "recurrent",
            "A recurrent layer takes n d^2, times 4.",
            "Vaswani et al. 2017, table 1",
            "the same",
            Rule(1, 1),
        ),
        Claim(
            "convolution",
            "A convolution over k words takes k n d^2, times 2.",
            "Vaswani et al. 2017, table 1",
            "the same",
            Rule(0.97, 1.03),
        ),
        Claim(
            "power-n",
            "The time of (i) grows with n squared.",
            "Vaswani et al. 2017, table 1",
            "exponent of n, from 1,024 to 3,072 words",
            Rule(1.75, 2.25),
        ),
        Claim(
            "power-d",
            "and in proportion to d.",
            "Vaswani et al. 2017, table 1",
            "exponent of d, from 256 to 2,048",
            Rule(0.75, 1.25),
        ),
        Claim(
            "steps",
            "A recurrence needs n steps that wait for each other.",
            "Vaswani et al. 2017, table 1",
            "steps for 96 words",
            Rule(LENGTH, LENGTH),
        ),
        Claim(
            "shape",
            "Q K^T is d by d.",
            "found in print",
            "entries of Q K^T, in units of n squared",
            Rule(1, 1),
            correction="Q K^T is n by n: a score for every pair of words.",
        ),
        Claim(
            "cross",
            "The two cross at n = d.",
            "Vaswani et al. 2017, section 4",
            "operations of (i) at n = d, in units of a recurrence",
            Rule(1, 1),
        ),
        Claim(
            "no-cross",
            "So attention layers are cheaper than recurrent ones where n < d.",
            "often written",
            "operations of (ii) at n = d, in units of a recurrence",
            Rule(low=2.0),
            correction="Only (i) crosses at n = d; with the projections attention never takes fewer operations.",
        ),
    ),
    measure=measure,
    draw=draw,
    read=("model/attention.py", "plan.py"),
    tries=("qkv plan bert-base --json", "qkv lab count"),
    seeds=5,
    timed=True,
)
