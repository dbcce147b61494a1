"""The causal mask: hidden means exactly nothing, and one pass trains every position at once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.config.recipe import ModelConfig
from qkv.labs.lab import Claim, Lab, Measured, Rule, Setting
from qkv.model.attention import Recorder
from qkv.model.build import build_model
from qkv.model.transformer import Decoder, EncoderDecoder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WORDS, ROUNDS = 500, 3


def decoder(seed: int) -> Decoder:
    config = ModelConfig(family="decoder", vocabulary=WORDS, width=128, heads=4, layers=3, positions="rotary")
    model = build_model(config, seed=seed)
    assert isinstance(model, Decoder)
    return model.eval()


def some_words(length: int, seed: int) -> Tensor:
    return torch.randint(WORDS, (1, length), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def look_ahead(model: Decoder, tokens_1L: Tensor) -> float:
    """The largest change of any earlier score when a later word is exchanged for another, wherever it stands."""
    before, changes = model.logits(model(tokens_1L)), []
    for place in range(1, tokens_1L.shape[1]):
        other = tokens_1L.clone()
        other[0, place] = (other[0, place] + 1) % WORDS
        changes.append((model.logits(model(other)) - before)[:, :place].abs().max())
    return float(torch.stack(changes).max())


@torch.no_grad()
def hidden_weight(model: Decoder, tokens_1L: Tensor) -> tuple[float, Tensor]:
    """The largest weight that any head of any layer gives to a later word, and one head's weights to look at."""
    recorder = Recorder()
    model(tokens_1L, attend=recorder)
    later = torch.ones(recorder.weights[0].shape[-2:]).triu(1).bool()
    return float(torch.stack([weights[..., later].max() for weights in recorder.weights]).max()), recorder.weights[0][
        0, 0
    ]


def losses(model: Decoder, tokens_1L: Tensor) -> Tensor:
    """How surprised the model is by each next word: all at once, in one pass."""
    hidden_1LD = model(tokens_1L[:, :-1])
    return F.cross_entropy(model.logits(hidden_1LD)[0], tokens_1L[0, 1:], reduction="none")


def losses_one_by_one(model: Decoder, tokens_1L: Tensor) -> Tensor:
    """The same as if there were no mask: a pass for every beginning of the text, its last word judged."""
    found = []
    for length in range(1, tokens_1L.shape[1]):
        hidden_1LD = model(tokens_1L[:, :length])
        found.append(F.cross_entropy(model.logits(hidden_1LD[:, -1]), tokens_1L[:, length]))
    return torch.stack(found)


def times_faster(model: Decoder, tokens_1L: Tensor) -> float:
    """How much faster forward and backward are in one pass. Taken in turns, the median."""
    ratios = []
    for _ in range(ROUNDS):
        seconds = []
        for way in (losses_one_by_one, losses):
            start = time.perf_counter()
            way(model, tokens_1L).sum().backward()
            seconds.append(time.perf_counter() - start)
        ratios.append(seconds[0] / seconds[1])
    return median(ratios)


@torch.no_grad()
def passes(seed: int, length: int) -> tuple[int, int]:
    """How often the encoder runs to read so many words, and the decoder to write so many."""
    config = ModelConfig(family="encoder-decoder", vocabulary=WORDS, width=32, heads=2, layers=1)
    model = build_model(config, seed=seed)
    assert isinstance(model, EncoderDecoder)
    counts = [0, 0]

    def counting(which: int) -> None:
        counts[which] += 1

    model.encoder.register_forward_hook(lambda *_: counting(0))
    model.decoder.register_forward_hook(lambda *_: counting(1))
    cache = model.start(model.encode(some_words(length, seed)))
    word = torch.zeros(1, 1, dtype=torch.long)
    for _ in range(length):
        hidden_11D, cache = model.step(word, cache)
        word = model.logits(hidden_11D[:, 0]).argmax(-1, keepdim=True)
    return counts[0], counts[1]


def measure(setting: Setting) -> Measured:
    model, length = decoder(setting.seed), 128 if setting.full else 48
    tokens_1L = some_words(length, setting.seed)
    most, shown_LL = hidden_weight(model, tokens_1L[:, :12])
    with torch.no_grad():
        together, apart = losses(model, tokens_1L), losses_one_by_one(model, tokens_1L)
    read, written = passes(setting.seed, 32)
    return Measured(
        effects={
            "zero": most,
            "future": look_ahead(model, tokens_1L[:, :16]),
            "at-once": float((together - apart).abs().max()),
            "faster": times_faster(model, tokens_1L),
            "sequential": read,
            "generation": written,
        },
        figures={"words of the text": length, "passes of the encoder for 32 words": read,
                 "passes of the decoder for 32 words": written},
        series={f"row {number}": row for number, row in enumerate(shown_LL.tolist())},
    )  # fmt: skip


def draw(figure: Figure, measured: Sequence[Measured]) -> None:
    axes = figure.subplots()
    rows = [measured[0].series[f"row {number}"] for number in range(12)]
    picture = axes.imshow(rows, cmap="cividis_r", vmin=0)
    for row, values in enumerate(rows):
        for column, value in enumerate(values):
            if value == 0.0:
                axes.text(column, row, "0", ha="center", va="center", fontsize=8, color="#555555")
    axes.set_xlabel("word that is looked at")
    axes.set_ylabel("word that looks")
    axes.grid(visible=False)
    figure.colorbar(picture, label="weight (0: exactly nothing)")


LAB = Lab(
    name="mask",
    question="What does the causal mask do, and what does it save?",
    usual="It hides later words, because the Transformer works sequentially.",
    answer="Hidden words get a weight of exactly 0, so one pass trains all positions at once. The encoder reads all "
    "words in one pass; only writing goes word by word.",
    paragraphs=(
        "A decoder is to guess every next word without having seen it. The mask sets the scores of later words to "
        "minus infinity before the softmax, and e to the minus infinity is exactly 0: a later word changes no earlier "
        "score, not in the last digit. A large negative number instead of infinity would only almost hide it.",
        "Because nothing leaks, all positions can be asked in a single pass: each gives its guess from what stands "
        "before it, and all guesses are judged together. Without the mask every beginning of the text would need a "
        "pass of its own. That is why training is parallel. Writing is not: the next word must be known before the one "
        "after it can be guessed. The encoder needs no mask and reads all words at once.",
    ),
    formula="score(i, j) = -inf for j > i, so weight(i, j) = e^-inf / sum = 0",
    claims=(
        Claim(
            "zero",
            "Hidden pairs get a weight of exactly 0.",
            "Vaswani et al. 2017, section 3.2.3",
            "largest weight that any head gives to a later word",
            Rule(high=0.0),
        ),
        Claim(
            "future",
            "No future token changes a past logit.",
            "Vaswani et al. 2017, section 3.2.3",
            "largest change of an earlier score when a later word is exchanged",
            Rule(high=0.0),
        ),
        Claim(
            "at-once",
            "One masked pass asks all positions at once what a pass for each would ask.",
            "Vaswani et al. 2017, section 3.1",
            "largest difference of the losses",
            Rule(high=1e-4),
        ),
        Claim(
            "faster",
            "One pass is much faster than one for each position.",
            "Vaswani et al. 2017, section 4",
            "time of one pass for each position, forward and backward, in units of one pass",
            Rule(low=4.0),
        ),
        Claim(
            "sequential",
            "The original encoder works word by word.",
            "often written",
            "passes of the encoder over 32 words",
            Rule(1, 1),
            correction="The encoder reads all words in one pass.",
        ),
        Claim(
            "generation",
            "Only generation is sequential: a pass for each word.",
            "Vaswani et al. 2017, section 3.1",
            "passes of the decoder to write 32 words",
            Rule(32, 32),
        ),
    ),
    measure=measure,
    draw=draw,
    read=("model/masks.py", "model/attention.py"),
    tries=("qkv explain", "qkv lab order"),
)
