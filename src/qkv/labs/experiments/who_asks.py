"""Who asks whom: self-attention, attention to a source, and what a decoder without attention has to do with."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.config.recipe import ModelConfig
from qkv.hub import path_of
from qkv.labs import texts
from qkv.labs.arms import bench, settings
from qkv.labs.baselines import Seq2Seq
from qkv.labs.lab import Claim, Lab, Measured, Rule, Setting
from qkv.model.attention import How, Recorder, plain, weigh
from qkv.model.build import build_model
from qkv.model.transformer import Encoder, EncoderDecoder
from qkv.plots import BLUE, COLOURS, PALE
from qkv.predict.predictor import load_predictor

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LETTERS = "abcdefghijklmnopqrstuvwxyz"
SHORTEST, LONGEST, ROWS = 4, 12, 3000
TEXTS, LENGTH, NEAR = 40, 48, 5
ARMS = ("fixed vector", "recurrent, attention", "Transformer")
Pairs = list[tuple[str, str]]


def reversals(rows: int, seed: int) -> Pairs:
    """Letters, and the same backwards. The first letter to be written is the last that was read, the last one the
    first: whoever keeps all of it in one vector has to remember much."""
    dice = random.Random(seed)
    made = (dice.choices(LETTERS, k=dice.randint(SHORTEST, LONGEST)) for _ in range(rows))
    return [(" ".join(letters), " ".join(reversed(letters))) for letters in made]


# --- three arms


def transformer(pairs: Pairs, held_out: Pairs, setting: Setting) -> float:
    """Share of letters that the Transformer has right, the right ones before them given."""
    steps = 800 if setting.full else 350
    with bench(setting.tick) as place:
        corpus = place.table("reverse", ({"text": a, "target": b} for a, b in pairs))
        model: dict[str, Any] = {
            "family": "encoder-decoder", "width": 64, "heads": 4, "layers": 2, "feedforward": 128,
            "positions": "sinusoidal", "embedding_scale": True, "activation": "relu", "tied": "all",
        }  # fmt: skip
        arm = place.train(
            f"Transformer, seed {setting.seed}",
            {
                "task": "translate",
                "seed": setting.seed,
                "data": {"corpus": corpus, "length": 20},
                "tokenizer": {"kind": "wordpiece", "vocab_size": 64, "lowercase": True},
                "model": model,
                "train": settings(steps, tokens=2048, rate=3e-3),
            },
        )
    trained, tokenizer = arm.model, arm.tokenizer
    assert isinstance(trained, EncoderDecoder)
    end, start = tokenizer.end, tokenizer.pad
    assert end is not None
    right = total = 0
    sources, targets = (tokenizer.ids([pair[side] for pair in held_out]) for side in (0, 1))
    with torch.no_grad():
        for source, target in zip(sources, targets, strict=True):
            hidden = trained(torch.tensor([[*source, end]]), torch.tensor([[start, *target]]))
            said = trained.logits(hidden)[0, : len(target)].argmax(-1)
            right += int((said == torch.tensor(target)).sum())
            total += len(target)
    return right / total


def numbers(texts_: Sequence[str], extra: int) -> Tensor:
    """Letters as numbers from 2 on, padded with 0; `extra` places stay free at the end."""
    rows = [[2 + LETTERS.index(letter) for letter in text.split()] for text in texts_]
    made = torch.zeros(len(rows), max(map(len, rows)) + extra, dtype=torch.long)
    for number, row in enumerate(rows):
        made[number, : len(row)] = torch.tensor(row)
    return made


def recurrent(pairs: Pairs, held_out: Pairs, setting: Setting, *, attention: bool) -> float:
    """The same of a recurrent network, with a fixed vector or with additive attention."""
    torch.manual_seed(setting.seed)
    model, dice = Seq2Seq(2 + len(LETTERS), 96, attention=attention), random.Random(setting.seed)
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    for step in range(800 if setting.full else 350):
        some = dice.sample(pairs, 64)
        scores, target = _asked(model, some)
        optimiser.zero_grad()
        F.cross_entropy(scores.transpose(1, 2), target, ignore_index=0).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        if step % 25 == 0:
            setting.tick(f"recurrent, {'attention' if attention else 'fixed vector'}: step {step}")
    with torch.no_grad():
        scores, target = _asked(model, held_out)
    real = target > 0
    return float((scores.argmax(-1) == target)[real].float().mean())


def _asked(model: Seq2Seq, pairs: Pairs) -> tuple[Tensor, Tensor]:
    source, target = numbers([a for a, _ in pairs], 0), numbers([b for _, b in pairs], 0)
    given = torch.cat([torch.ones(len(pairs), 1, dtype=torch.long), target[:, :-1]], 1)
    return model(source, source > 0, given), target


# --- who gives what


class Seen:
    """An attend function that keeps the queries, keys and values it is given."""

    def __init__(self) -> None:
        self.parts: list[tuple[Tensor, Tensor, Tensor]] = []

    def __call__(self, q_BHLK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, how: How) -> Tensor:
        self.parts.append((q_BHLK, k_BHSK, v_BHSK))
        return plain(q_BHLK, k_BHSK, v_BHSK, how)


@torch.no_grad()
def sources_of(seed: int) -> dict[str, float]:
    """In the first cross-attention of a fresh model: how much queries change with the source, and keys and values with
    the target; and how much all three of the encoder's self-attention change with its input, at least."""
    config = ModelConfig(family="encoder-decoder", vocabulary=40, width=32, heads=2, layers=1)
    model = build_model(config, seed=seed).eval()
    assert isinstance(model, EncoderDecoder)

    def seen(source: list[int], target: list[int]) -> list[tuple[Tensor, Tensor, Tensor]]:
        watch = Seen()
        model(torch.tensor([source]), torch.tensor([target]), attend=watch)
        return watch.parts  # self-attention of the encoder, then of the decoder, then cross-attention

    base, other_source, other_target = (
        seen([5, 6, 7], [1, 8, 9]),
        seen([10, 11, 12], [1, 8, 9]),
        seen([5, 6, 7], [1, 3, 4]),
    )

    def change(a: Tensor, b: Tensor) -> float:
        return float((a - b).abs().max())

    return {
        "q by source": change(base[2][0], other_source[2][0]),
        "k, v by target": max(change(base[2][part], other_target[2][part]) for part in (1, 2)),
        "self": min(change(base[0][part], other_source[0][part]) for part in (0, 1, 2)),
    }


@torch.no_grad()
def values_matter(seed: int) -> float:
    """Largest change of any attention weight when all values are exchanged for others."""
    dice = torch.Generator().manual_seed(seed)
    config = ModelConfig(family="encoder", vocabulary=40, width=32, heads=2, layers=1)
    model = build_model(config, seed=seed).eval()
    assert isinstance(model, Encoder)
    found: list[Tensor] = []

    def with_other_values(q_BHLK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, how: How) -> Tensor:
        found.append(weigh(q_BHLK, k_BHSK, how))
        return found[-1] @ torch.randn(v_BHSK.shape, generator=dice)

    tokens, recorder = torch.tensor([[5, 6, 7, 8]]), Recorder()
    model(tokens, attend=recorder)
    model(tokens, attend=with_other_values)
    return float((recorder.weights[0] - found[0]).abs().max())


@torch.no_grad()
def where_it_looks() -> tuple[float, float, list[float]]:
    """Of the bundled encoder on real sentences: share of places where a head looks at the word itself most, share of
    weight further than NEAR words away, and the mean weight by distance."""
    predictor = load_predictor(path_of("bundled-encoder"))
    assert isinstance(predictor.model, Encoder)
    selves = far = heads = 0.0
    by_distance = torch.zeros(LENGTH, dtype=torch.float64)
    places = torch.arange(LENGTH)
    gaps = (places[:, None] - places).abs()
    rows = [ids[:LENGTH] for ids in predictor.tokenizer.ids(texts.paragraphs()) if len(ids) >= LENGTH][:TEXTS]
    for ids in rows:
        recorder = Recorder()
        predictor.model(torch.tensor([ids]), attend=recorder)
        for weights in torch.cat([layer[0] for layer in recorder.weights]).double():
            heads += 1
            selves += float((weights.argmax(1) == places).double().mean())
            far += float(weights[gaps > NEAR].sum() / LENGTH)
            by_distance.index_add_(0, gaps.flatten(), weights.flatten() / LENGTH)
    return selves / heads, far / heads, (by_distance / heads).tolist()


def measure(setting: Setting) -> Measured:
    pairs, held_out = reversals(ROWS, setting.seed), reversals(300, setting.seed + 1000)
    given, (itself, far, by_distance) = sources_of(setting.seed), where_it_looks()
    rights = dict(
        zip(
            ARMS,
            (
                recurrent(pairs, held_out, setting, attention=False),
                recurrent(pairs, held_out, setting, attention=True),
                transformer(pairs, held_out, setting),
            ),
            strict=True,
        )
    )
    return Measured(
        effects={
            "one-sequence": given["self"],
            "query": given["q by source"],
            "keys": given["k, v by target"],
            "bottleneck": rights["recurrent, attention"] - rights["fixed vector"],
            "transformer": rights["Transformer"] - rights["fixed vector"],
            "itself": itself,
            "neighbourhood": far,
            "values": values_matter(setting.seed),
        },
        figures={f"letters right, {name}": value for name, value in rights.items()},
        series={"arms": list(rights.values()), "distance": by_distance},
    )


def draw(figure: Figure, measured: Sequence[Measured]) -> None:
    left, right = figure.subplots(1, 2)
    for number, name in enumerate(ARMS):
        values = [one.series["arms"][number] for one in measured]
        left.bar(name, sum(values) / len(values), color=PALE, edgecolor=BLUE, width=0.6)
        left.plot([number] * len(values), values, color=BLUE, marker="o", linestyle="")
    left.set_ylim(0, 1.05)
    left.set_ylabel("letters right, writing backwards")
    left.set_xlabel("points: seeds")
    distances = measured[0].series["distance"]
    right.bar(range(len(distances)), distances, color=PALE, edgecolor=COLOURS[0])
    right.set_xlabel("distance in words (0: the word itself)")
    right.set_ylabel("mean weight in a trained encoder")


LAB = Lab(
    name="who-asks",
    question="Where do queries, keys and values come from, and whom do words ask?",
    usual="In self-attention all three come from one sequence; a word attends most to itself and its neighbours.",
    answer="In self-attention all three come from one sequence; to a source, the target asks and the source answers. A "
    "word does not in general look at itself most, nor only nearby; and values take part in no comparison.",
    paragraphs=(
        "Self-attention makes queries, keys and values from the same words. In an encoder-decoder the words to be "
        "written ask, and the words that were read answer: queries from the target, keys and values from the source. "
        "The lab exchanges one side and looks which of the three change. Only queries and keys are compared; values "
        "are what is taken, and exchanging them changes no weight.",
        "Before attention, a recurrent network pressed the whole source into one vector. The lab trains three writers "
        "to say letters backwards: one with that fixed vector, one recurrent with additive attention, one Transformer; "
        "the same letters, about as many steps. And it looks where a trained encoder looks: the histogram shows the "
        "weight by distance.",
    ),
    formula="self: Q, K, V from x        cross: Q from the target, K and V from the source",
    claims=(
        Claim(
            "one-sequence",
            "Self-attention takes Q, K and V from one sequence.",
            "Vaswani et al. 2017, section 3.2.3",
            "smallest change of Q, K and V of the encoder when its input changes",
            Rule(low=1e-3),
        ),
        Claim(
            "query",
            "Encoder-decoder attention takes Q from the target,",
            "Vaswani et al. 2017, section 3.2.3",
            "change of its Q when the source changes",
            Rule(high=0.0),
        ),
        Claim(
            "keys",
            "and K and V from the source.",
            "Vaswani et al. 2017, section 3.2.3",
            "change of its K and V when the target changes",
            Rule(high=0.0),
        ),
        Claim(
            "bottleneck",
            "A fixed context vector is a bottleneck that attention removes.",
            "Bahdanau et al. 2015",
            "letters right with attention, less those with a fixed vector",
            Rule(low=0.05),
        ),
        Claim(
            "transformer",
            "So does a Transformer.",
            "Vaswani et al. 2017",
            "letters right by a Transformer, less those with a fixed vector",
            Rule(low=0.05),
        ),
        Claim(
            "itself",
            "A token attends most to itself.",
            "often written",
            "share of places where a head of a trained encoder looks at the word itself most",
            Rule(high=0.5),
            correction="Not in general: most heads look elsewhere most.",
        ),
        Claim(
            "neighbourhood",
            "Attention is to the neighbourhood.",
            "often written",
            "share of a trained encoder's weight on words further than 5 away",
            Rule(low=0.2),
            correction="A good part of the weight lies far away.",
        ),
        Claim(
            "values",
            "V takes part in a dot product.",
            "found in print",
            "change of any weight when all values are exchanged",
            Rule(high=0.0),
            correction="Weights come from Q and K alone; V is what they weigh.",
        ),
    ),
    measure=measure,
    draw=draw,
    read=("model/attention.py", "model/transformer.py"),
    tries=("qkv train reverse", "qkv lab heads"),
)
