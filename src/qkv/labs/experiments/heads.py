"""Many heads: whether they look at different things, what they cost, and what they are worth."""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from qkv.config.recipe import ModelConfig
from qkv.hub import path_of
from qkv.labs import texts
from qkv.labs.arms import bench, settings
from qkv.labs.lab import Claim, Lab, Measured, Rule, Setting
from qkv.model.attention import Attention, Recorder, View, plain
from qkv.model.build import build_model, lay_out
from qkv.model.transformer import Decoder, Encoder
from qkv.plots import COLOURS
from qkv.predict.predictor import load_predictor
from qkv.schema import UserError
from qkv.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = ("previous", "next", "same word", "punctuation", "rare word")
TEXTS, LENGTH = 60, 48
TIMES, LEAST = 3.0, 0.15  # of a kind: so many times the weight it would have by chance, and so much weight at least
HEADS, WIDTH = (1, 4, 64), 128


@dataclass(frozen=True)
class Looks:
    """Where each head looks: its mean weight on pairs of each kind, and what that would be by chance."""

    weights: list[dict[str, float]]  # by head, layer after layer
    chance: dict[str, float]

    def kinds(self) -> list[str | None]:
        """The kind of each head: the one it looks at most beyond chance; None: of no kind."""
        found: list[str | None] = []
        for weights in self.weights:
            beyond = {kind: weights[kind] / self.chance[kind] for kind in KINDS}
            best = max(beyond, key=beyond.__getitem__)
            found.append(best if beyond[best] >= TIMES and weights[best] >= LEAST else None)
        return found


def pairs_of(ids: list[int], tokenizer: Tokenizer, often: Counter[int]) -> dict[str, Tensor]:
    """Which pairs of a text (query, key) are of each kind (L, L)."""
    count = len(ids)
    words = torch.tensor(ids)
    marks = torch.tensor([tokenizer.token(one) in string.punctuation for one in ids])
    rare = torch.tensor([often[one] <= 1 for one in ids]) & ~marks
    eye = torch.eye(count, dtype=torch.bool)
    return {
        "previous": torch.diag(torch.ones(count - 1), -1).bool(),
        "next": torch.diag(torch.ones(count - 1), 1).bool(),
        "same word": (words[:, None] == words) & ~eye,
        "punctuation": marks.expand(count, count) & ~eye,
        "rare word": rare.expand(count, count) & ~eye,
    }


@torch.no_grad()
def looks_of(model: Encoder | Decoder, tokenizer: Tokenizer) -> Looks:
    """Read real sentences and see where every head looks."""
    all_ids = [ids[:LENGTH] for ids in tokenizer.ids(texts.paragraphs()[:400]) if len(ids) >= LENGTH][:TEXTS]
    often = Counter(token for ids in all_ids for token in ids)
    sums: dict[str, Tensor | float] = dict.fromkeys(KINDS, 0.0)
    chance = dict.fromkeys(KINDS, 0.0)
    causal = isinstance(model, Decoder)
    for ids in all_ids:
        recorder = Recorder()
        model(torch.tensor([ids]), attend=recorder)
        weights = torch.cat([layer[0] for layer in recorder.weights]).double()  # all heads, L, L
        allowed = torch.ones(weights.shape[1:]).tril().bool() if causal else torch.ones(weights.shape[1:]).bool()
        even = allowed.double() / allowed.double().sum(1, keepdim=True)
        for kind, pairs in pairs_of(ids, tokenizer, often).items():
            sums[kind] = sums[kind] + (weights * pairs).sum((1, 2)) / len(ids)
            chance[kind] += float((even * pairs).sum()) / len(ids)
    count = len(all_ids)
    means = {kind: (total / count).tolist() for kind, total in sums.items() if isinstance(total, Tensor)}
    heads = len(means[KINDS[0]])
    rows = [{kind: float(means[kind][head]) for kind in KINDS} for head in range(heads)]
    return Looks(rows, {kind: max(value / count, 1e-9) for kind, value in chance.items()})


def trained_and_fresh(setting: Setting) -> tuple[Looks, Looks]:
    """The user's model or the bundled encoder, and one like it that has learnt nothing."""
    predictor = load_predictor(path_of("bundled-encoder") if setting.run is None else setting.run)
    if not isinstance(predictor.model, Encoder | Decoder):
        raise UserError(f"{setting.run}: the lab heads looks at encoders and decoders")
    fresh = build_model(predictor.config, seed=setting.seed).eval()
    assert isinstance(fresh, Encoder | Decoder)
    return looks_of(predictor.model, predictor.tokenizer), looks_of(fresh, predictor.tokenizer)


def weights_with(heads: int) -> int:
    """Weights of a model 768 wide with so many heads."""
    config = ModelConfig(family="encoder", vocabulary=100, width=768, heads=heads, layers=1)
    return sum(weight.numel() for weight in lay_out(config).parameters())


def operations_with(heads: int) -> float:
    part = Attention(width=96, heads=heads, kv_heads=heads, head_width=96 // heads, score="dot", scale="sqrt",
                     bias=False, dropout=0.0)  # fmt: skip
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        part(torch.randn(1, 64, 96), View(attend=plain))
    return float(counter.get_total_flops())


def measure(setting: Setting) -> Measured:
    trained, fresh = trained_and_fresh(setting)
    kinds, fresh_kinds = trained.kinds(), fresh.kinds()
    losses = {}
    with bench(setting.tick) as place:
        corpus = place.text("help", texts.paragraphs())
        for heads in HEADS:
            train = settings(500 if setting.full else 250, rate=3e-3)
            parts = {"layers": 1, "width": WIDTH, "feedforward": 2 * WIDTH, "heads": heads}
            losses[heads] = place.decoder(f"{heads} heads", corpus, setting, train, **parts).loss
    share = sum(kind is not None for kind in kinds) / len(kinds)
    by_chance = sum(kind is not None for kind in fresh_kinds) / len(fresh_kinds)
    return Measured(
        effects={
            "differ": share - by_chance,
            "kinds": len({kind for kind in kinds if kind}),
            "width": lay_out_width(),
            "weights": weights_with(12) / weights_with(1),
            "operations": operations_with(12) / operations_with(1),
            "quality": losses[1] - losses[4],
            "narrow": losses[64] - losses[4],
        },
        figures={
            "heads of a kind, trained": share,
            "heads of a kind, fresh": by_chance,
            **{f"trained heads that look at: {kind}": kinds.count(kind) for kind in KINDS},
            **{f"loss with {heads} heads": loss for heads, loss in losses.items()},
        },
        series={
            **{kind: [weights[kind] / trained.chance[kind] for weights in trained.weights] for kind in KINDS},
            "losses": list(losses.values()),
        },
    )


def lay_out_width() -> float:
    """The width of a head of a model with BERT's sizes."""
    return ModelConfig(family="encoder", vocabulary=100, width=768, heads=12, layers=1).resolve().head_width


def draw(figure: Figure, measured: Sequence[Measured]) -> None:
    left, right = figure.subplots(1, 2, width_ratios=(2, 1))
    rows = [measured[0].series[kind] for kind in KINDS]
    picture = left.imshow(rows, aspect="auto", cmap="cividis", vmin=0, vmax=max(6.0, *(max(row) for row in rows)))
    for row, values in enumerate(rows):
        for column, value in enumerate(values):
            left.text(column, row, f"{value:.0f}", ha="center", va="center", fontsize=8,
                      color="black" if value > 15 else "white")  # fmt: skip
    left.set_yticks(range(len(KINDS)), KINDS)
    left.set_xlabel("head, layer after layer")
    left.grid(visible=False)
    figure.colorbar(picture, label="weight, times chance", location="bottom")
    for one in measured:
        right.plot(HEADS, one.series["losses"], color=COLOURS[0], marker="o", alpha=0.7)
    right.set_xscale("log", base=2)
    right.set_xticks(HEADS, [str(heads) for heads in HEADS])
    right.set_xlabel("heads (lines: seeds)")
    right.set_ylabel("loss of a decoder of one layer")


LAB = Lab(
    name="heads",
    question="Why many heads, and what do they cost?",
    usual="Each head attends to something else; h heads cost h times as much.",
    answer="Heads of a trained model do look at different things, a fresh one's do not. They cost nothing more: each "
    "is d_model / h wide, 768 / 12 = 64. Several are better than one, until each is too narrow.",
    paragraphs=(
        "One head gives every word one mixture of the others. Several heads give several, each by its own part of the "
        "projections. The lab reads real sentences with a trained model and sums up where each head looks: at the word "
        "before, the word after, the same word elsewhere, punctuation, rare words. A head is of a kind if it looks "
        "there at least three times as much as by chance. A model with fresh weights is the control.",
        "Twelve heads of 64 have the same projections as one head of 768, cut into twelve, so neither weights nor "
        "operations grow. Whether more heads are better at equal cost is then a question of measuring: the lab trains "
        "decoders of a single layer, 128 wide, in which no later layer can make up for what one head cannot see at "
        "once, with one head of 128 features up to 64 heads of two.",
    ),
    formula="head width = d_model / h",
    claims=(
        Claim(
            "differ",
            "Heads of a trained model attend to things that can be named.",
            "Clark et al. 2019",
            "share of heads that are of a kind, trained less fresh",
            Rule(low=0.2),
        ),
        Claim(
            "kinds",
            "and to different ones.",
            "Clark et al. 2019",
            "different kinds among the trained heads",
            Rule(low=2),
        ),
        Claim(
            "width",
            "d_head = d_model / h: 768 / 12 = 64.",
            "Vaswani et al. 2017, section 3.2.2",
            "width of a head",
            Rule(64, 64),
        ),
        Claim(
            "weights",
            "h heads have as many weights as one.",
            "Vaswani et al. 2017, section 3.2.2",
            "weights with 12 heads, in units of one",
            Rule(1, 1),
        ),
        Claim(
            "operations",
            "and take as many operations.",
            "Vaswani et al. 2017, section 3.2.2",
            "operations with 12 heads, in units of one",
            Rule(1, 1),
        ),
        Claim(
            "quality",
            "Several heads are better than one.",
            "Vaswani et al. 2017, table 3 (A)",
            "loss of one layer with one head, less loss with four (nats a word)",
            Rule(low=0.0),
        ),
        Claim(
            "narrow",
            "The more heads, the better.",
            "often thought",
            "loss of one layer with 64 heads of two features, less loss with four of 32 (nats a word)",
            Rule(low=0.0),
            correction="Each gets narrower, and heads of two features are worse than four of 32.",
        ),
    ),
    measure=measure,
    draw=draw,
    read=("model/attention.py",),
    tries=("qkv explain", "qkv lab heads RUN"),
    full_seeds=10,
    looks_at=("encoder", "decoder"),
)
