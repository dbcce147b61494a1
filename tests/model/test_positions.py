"""Every position scheme against its paper's formula, written again as slow loops over plain Python numbers.

The loops below share no code with qkv: they take the projected queries, keys and values of one head and follow the
paper letter by letter to the head's output, so a wrong sign, scale, axis or table index cannot pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

import pytest
import torch
from torch import Tensor

from qkv.model import Encoder, build_model, plain
from qkv.model.attention import Attention, How, View, dot
from qkv.model.dropout import Dropout
from qkv.model.positions import T5, Alibi, NoPositions, Positions, Relative, Rotary, Sinusoidal, alibi_slopes
from tests.support.tiny_models import D, H, K, L, S, decoder, encoder, encoder_decoder, normal, tiny

Vector = list[float]
Score = Callable[[Vector, Vector, int, int], float]  # query, key, and where each stands -> score before the softmax


def inner(a: Vector, b: Vector) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def attended(q: list[Vector], k: list[Vector], v: list[Vector], score: Score, causal: bool) -> list[Vector]:
    """Vaswani et al. (2017), equation 1, for one head, with any score."""
    rows = []
    for i, query in enumerate(q):
        seen = [j for j in range(len(k)) if j <= i or not causal]
        powers = [math.exp(score(query, k[j], i, j)) for j in seen]
        weights = [power / sum(powers) for power in powers]
        rows.append([sum(w * v[j][c] for w, j in zip(weights, seen, strict=True)) for c in range(len(v[0]))])
    return rows


def heads_of(positions: Positions, width: int, layer: int, causal: bool) -> tuple[Attention, Tensor, Tensor]:
    """A real attention with this scheme whose output map is the identity: input (1, L, D), and each head's output."""
    parts = {"width": H * width, "heads": H, "kv_heads": H, "head_width": width, "scale": "sqrt", "score": "dot"}
    attention = Attention(**parts, bias=True, dropout=0.0).double()  # type: ignore[arg-type]
    torch.nn.init.eye_(attention.output.weight)
    torch.nn.init.zeros_(attention.output.bias)
    with torch.no_grad():
        attention.project.weight.copy_(normal(*attention.project.weight.shape, seed=5) / 3)
    x, pos = normal(1, S, H * width), torch.arange(S)[None]
    keep = (pos[:, None] <= pos[..., None])[:, None] if causal else None
    out, _ = attention(x, View(positions, positions.frame(pos, pos, x), keep), layer=layer)
    return attention, x, out.detach().view(S, H, width)


def assert_heads(positions: Positions, score_of: Callable[[int], Score], width: int = K, layer: int = 0) -> None:
    """Every head's output equals the loop with the score that head has, looking both ways and causally."""
    for causal in (False, True):
        attention, x, out_LHK = heads_of(positions, width, layer, causal)
        q, k, v = attention.project(x)[0].detach().view(S, 3, H, width).unbind(1)
        for head in range(H):
            lists = [part[:, head].tolist() for part in (q, k, v)]
            expected = attended(lists[0], lists[1], lists[2], score_of(head), causal)
            torch.testing.assert_close(out_LHK[:, head].tolist(), expected, rtol=0, atol=1e-12)


def test_hand_numbers() -> None:
    """ClassificationMetrics 2, 1, 0 give weights 0.665, 0.245, 0.090: e^2 = 7.389, e = 2.718 and 1, of 11.107."""
    q, k = torch.tensor([[[[2.0, 1.0, 0.0]]]]), torch.eye(3)[None, None]
    values = torch.eye(3)[None, None]  # so that the output is the weights themselves
    out = plain(q, k, values, How(dot, None, None, Dropout(0.0)))
    assert [round(weight, 3) for weight in out.flatten().tolist()] == [0.665, 0.245, 0.090]


def test_none_is_plain_attention() -> None:
    """Equation 1 and nothing else; also what the other schemes are measured against."""
    assert_heads(NoPositions(), lambda head: lambda q, k, i, j: inner(q, k) / math.sqrt(K))


@pytest.mark.parametrize(
    ("heads", "slopes"),
    [
        (1, [1 / 256]),
        (2, [1 / 16, 1 / 256]),
        (8, [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]),
        (3, [1 / 16, 1 / 256, 1 / 4]),
        (7, [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8, 1 / 32]),
        (11, [2.0 ** -(i + 1) for i in range(8)] + [2**-0.5, 2**-1.5, 2**-2.5]),
    ],
)
def test_alibi_slopes(heads: int, slopes: Vector) -> None:
    """Press et al. (2022), section 3: a geometric sequence from 2^(-8/H); their released code for other counts."""
    assert alibi_slopes(heads) == slopes


def test_alibi() -> None:
    """softmax(q_i k / sqrt(K) + m [-(i-1), ..., -1, 0]): the penalty is not scaled; looking both ways it is even."""
    slopes = [1 / 16, 1 / 256, 1 / 4]  # three heads: not a power of two
    assert_heads(Alibi(H), lambda head: lambda q, k, i, j: inner(q, k) / math.sqrt(K) - slopes[head] * abs(i - j))


def bucket(distance: int, buckets: int, reach: int, causal: bool) -> int:
    """Raffel et al. (2020), section 2.1, of key position minus query position. Exact nearby; then the share of the way
    from `exact` to `reach` on a logarithmic scale; from `reach` on, always the last."""
    count = buckets if causal else buckets // 2
    start = 0 if causal or distance <= 0 else count
    gap = max(-distance, 0) if causal else abs(distance)
    exact = count // 2
    if gap < exact:
        return start + gap
    share = math.log(gap / exact) / math.log(reach / exact)
    return start + min(exact + math.floor(share * (count - exact)), count - 1)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("buckets", "reach"), [(32, 128), (4, 3), (7, 5), (11, 17), (31, 127), (64, 67), (128, 521)])
def test_t5_buckets(buckets: int, reach: int, causal: bool) -> None:
    """Every distance up to five times the reach, on both sides."""
    distances = torch.arange(-5 * reach, 5 * reach + 1)
    expected = [bucket(int(distance), buckets, reach, causal) for distance in distances]
    assert T5(H, buckets, reach, causal).bucket(distances).tolist() == expected


def test_t5_buckets_by_hand() -> None:
    """T5's own setting, 32 buckets up to 128: both ways, 8 near ones a side, then 8, 12, 16, 23, 32, 46, 64, 91."""
    both, back = T5(1, 32, 128, causal=False), T5(1, 32, 128, causal=True)
    starts = [0, 1, 7, 8, 11, 12, 15, 16, 22, 23, 31, 32, 45, 46, 63, 64, 90, 91, 10_000]
    expected = [0, 1, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15]
    assert both.bucket(-torch.tensor(starts)).tolist() == expected
    assert both.bucket(torch.tensor(starts[1:])).tolist() == [16 + number for number in expected[1:]]
    assert back.bucket(-torch.tensor([0, 15, 16, 18, 19, 112, 113, 128])).tolist() == [0, 15, 16, 16, 17, 30, 31, 31]
    assert back.bucket(torch.tensor([1, 5, 1000])).tolist() == [0, 0, 0], "later keys are hidden anyway"


@pytest.mark.parametrize("looks_back", [False, True])
def test_t5(looks_back: bool) -> None:
    """A trained number for a head and a bucket is added to the score, unscaled."""
    positions = T5(H, 7, 5, looks_back).double()
    torch.nn.init.normal_(positions.table)
    table = positions.table.tolist()

    def score_of(head: int) -> Score:
        return lambda q, k, i, j: inner(q, k) / math.sqrt(K) + table[bucket(j - i, 7, 5, looks_back)][head]

    assert_heads(positions, score_of)


def turned(vector: Vector, position: int, base: float) -> Vector:
    """Su et al. (2021), equation 15: the pair (i, i + K/2) is turned by position / base^(2i/K)."""
    half = len(vector) // 2
    result = list(vector)
    for i in range(half):
        angle = position / base ** (2 * i / len(vector))
        a, b = vector[i], vector[i + half]
        result[i] = a * math.cos(angle) - b * math.sin(angle)
        result[i + half] = a * math.sin(angle) + b * math.cos(angle)
    return result


@pytest.mark.parametrize("base", [10_000.0, 31.0])
def test_rotary(base: float) -> None:
    """Queries and keys are turned, values are not. Ten features, since pairs need an even number."""
    width = 2 * K

    def score(q: Vector, k: Vector, i: int, j: int) -> float:
        return inner(turned(q, i, base), turned(k, j, base)) / math.sqrt(width)

    assert_heads(Rotary(base, width), lambda head: score, width)


def test_rotary_depends_on_distance_only() -> None:
    """The same query and key give the same product wherever they stand together, and another at another distance."""
    rotary, q, k = Rotary(10_000.0, 2 * K), normal(1, 1, 1, 2 * K, seed=5), normal(1, 1, 1, 2 * K, seed=7)

    def product(at_query: int, at_key: int) -> float:
        turned_q, turned_k = (
            rotary.rotate(x, x, rotary.frame(torch.tensor([[at]]), torch.tensor([[at]]), x))[0]
            for x, at in ((q, at_query), (k, at_key))
        )
        return (turned_q * turned_k).sum().item()

    assert product(5, 2) == pytest.approx(product(1005, 1002), abs=1e-10)
    assert abs(product(5, 2) - product(5, 3)) > 1e-3
    assert abs(product(5, 2) - product(2, 5)) > 1e-3


@pytest.mark.parametrize("layer", [0, 1])
def test_relative(layer: int) -> None:
    """Shaw et al. (2018), equation 5, keys only: q . (k + a) / sqrt(K), a the vector of the distance clipped to 3."""
    positions = Relative(2, 3, K).double()
    torch.nn.init.normal_(positions.table)
    table = positions.table[layer].tolist()

    def score(q: Vector, k: Vector, i: int, j: int) -> float:
        vector = table[max(-3, min(3, j - i)) + 3]
        return inner(q, [x + y for x, y in zip(k, vector, strict=True)]) / math.sqrt(K)

    assert_heads(positions, lambda head: score, layer=layer)


@pytest.mark.parametrize("width", [D, 2 * K, 1])
def test_sinusoidal(width: int) -> None:
    """Vaswani et al. (2017), section 3.5: sin(pos / 10000^(2i/D)), then the cosines; with an odd width one less of
    them. Positions need not be in order."""
    pos = torch.tensor([[0, 1, 2, 5003, 3]])
    half = (width + 1) // 2
    expected = [
        [math.sin(p / 10_000 ** (2 * i / width)) for i in range(half)]
        + [math.cos(p / 10_000 ** (2 * i / width)) for i in range(width // 2)]
        for p in pos[0].tolist()
    ]
    waves = Sinusoidal().embed(torch.zeros(1, 5, width, dtype=torch.float64), pos)
    torch.testing.assert_close(waves[0].tolist(), expected, rtol=0, atol=1e-11)


def test_sinusoidal_shift_is_a_rotation() -> None:
    """The paper's reason for the waves: for any fixed step, PE(pos + step) is one linear map of PE(pos)."""
    width, step = 2 * K, 3
    waves = Sinusoidal().embed(torch.zeros(1, 101, width, dtype=torch.float64), torch.arange(101)[None])[0]
    angles = [step / 10_000 ** (2 * i / width) for i in range(K)]
    cos, sin = (torch.tensor([f(a) for a in angles], dtype=torch.float64).diag() for f in (math.cos, math.sin))
    shift = torch.cat([torch.cat([cos, sin], 1), torch.cat([-sin, cos], 1)])
    torch.testing.assert_close(waves[:-step] @ shift.T, waves[step:], rtol=0, atol=1e-12)
    torch.testing.assert_close(shift @ shift.T, torch.eye(width, dtype=torch.float64), rtol=0, atol=1e-12)


def test_learned_adds_its_rows() -> None:
    """Position p gets row p of the table, and the model sees the sum."""
    model = encoder("learned")
    x, pos = normal(1, L, D), torch.tensor([[3, 1, 4, 1, 5, 9, 2]])
    rows = torch.stack([model.stack.positions.get_parameter("table")[p] for p in pos[0].tolist()])
    torch.testing.assert_close(model.stack.positions.embed(x, pos), x + rows, rtol=0, atol=0)


def test_tables() -> None:
    """One t5 table for all layers, number by bucket and head; a relative table for each layer, shared by its heads."""
    for scheme, shape in {"t5": (7, H), "relative": (2, 7, K), "learned": (29, D)}.items():
        model = build_model(tiny("encoder", scheme))
        tables = {name: weight.shape for name, weight in cast(Encoder, model).named_parameters() if "positions" in name}
        assert tables == {"stack.positions.table": shape}
    for scheme in ("none", "sinusoidal", "alibi", "rotary"):
        assert not list(decoder(scheme).stack.positions.parameters())


def test_t5_looks_where_its_stack_looks() -> None:
    """A decoder spends all its buckets on the past, an encoder half of them on each side, also the two of a pair."""
    pair = encoder_decoder("t5")
    distances = torch.arange(-L, L + 1)
    stacks = ((encoder("t5").stack, False), (decoder("t5").stack, True), (pair.encoder, False), (pair.decoder, True))
    for stack, causal in stacks:
        expected = [bucket(int(distance), 7, 5, causal) for distance in distances]
        assert cast(T5, stack.positions).bucket(distances).tolist() == expected


def test_relative_reads_the_table_of_its_layer() -> None:
    """Both tables have a gradient: were a layer number lost on the way, one table would serve twice."""
    model = encoder("relative")
    hidden, _ = model.stack(normal(1, L, D), torch.arange(L)[None], None)
    (gradient,) = torch.autograd.grad(hidden.square().sum(), model.stack.positions.get_parameter("table"))
    assert (gradient.abs().amax((1, 2)) > 1e-6).all()
