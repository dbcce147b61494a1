"""One word, many meanings: one vector before the encoder, another in every sentence after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.config.recipe import ModelConfig
from qkv.hub import path_of
from qkv.labs.lab import Claim, Lab, Measured, Rule, Setting
from qkv.model.build import build_model
from qkv.model.transformer import Decoder, Encoder
from qkv.plots import BLUE, PALE
from qkv.predict.predictor import Predictor, load_predictor
from qkv.schema import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# A word, sentences with one of its meanings, and sentences with another.
SENSES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "like": (
        ("i like this film very much .", "you will like the music .", "they like the old actors ."),
        ("it looks like a cheap film .", "he acts like a child .", "it sounds like a bad joke ."),
    ),
    "kind": (
        ("it is a kind of love story .", "this kind of film is rare .", "what kind of ending is that ?"),
        ("she is kind to the children .", "he was a kind and gentle man .", "they were very kind to me ."),
    ),
    "well": (
        ("the film is well made .", "it is well written and well acted .", "she plays her role well ."),
        ("well , i was wrong about it .", "well , that is all there is .", "well , what can i say ?"),
    ),
    "play": (
        ("the actors play their roles with joy .", "they play a couple in love .", "you play the villain ."),
        ("it is based on a play by him .", "the play was better than the film .", "i saw the play on stage ."),
    ),
}


def model_of(setting: Setting) -> tuple[Predictor, Encoder]:
    """The user's own encoder, or the bundled one."""
    predictor = load_predictor(path_of("bundled-encoder") if setting.run is None else setting.run)
    if not isinstance(predictor.model, Encoder):
        raise UserError(f"{setting.run}: the lab context looks at encoders")
    return predictor, predictor.model


@torch.no_grad()
def vectors(predictor: Predictor, model: Encoder, word: str, sentences: Sequence[str]) -> tuple[Tensor, Tensor]:
    """The vector of the word (of its first piece) in each sentence, before the encoder's layers and after them
    (N, D)."""
    before, after = [], []
    for sentence in sentences:
        begin = f" {sentence}".index(f" {word} ")
        place = next(n for n, (_, end) in enumerate(predictor.tokenizer.spans(sentence)) if end > begin)
        tokens_1L = torch.tensor([predictor.tokenizer.encode([sentence])[0].ids])
        before.append(model.embedding(tokens_1L)[0, place])
        after.append(model(tokens_1L)[0, place])
    return torch.stack(before), torch.stack(after)


def distances(vectors_ND: Tensor, others_MD: Tensor | None = None) -> float:
    """Mean cosine distance of all pairs; with others, of all pairs across."""
    one = F.normalize(vectors_ND.double(), dim=1)
    if others_MD is not None:
        return float(1 - (one @ F.normalize(others_MD.double(), dim=1).T).mean())
    count = len(one)
    return float(1 - ((one @ one.T).sum() - count) / (count * (count - 1)))


@torch.no_grad()
def looks_ahead(family: Literal["encoder", "decoder"], seed: int) -> float:
    """How much the first word's vector changes when the last word of the sentence is exchanged, in a fresh model with
    the parts of the 2017 paper (as a decoder: the same parts, looking back only)."""
    config = ModelConfig(family=family, vocabulary=50, width=32, heads=4, layers=2, activation="relu",
                         embedding_scale=True, positions="sinusoidal")  # fmt: skip
    model = build_model(config, seed=seed)
    assert isinstance(model, Encoder | Decoder)
    one, other = (model.eval()(torch.tensor([[5, 6, 7, 8, last]]))[0, 0] for last in (9, 10))
    return float((one - other).abs().max() / one.abs().mean())


def measure(setting: Setting) -> Measured:
    predictor, model = model_of(setting)
    before, after, apart = [], [], {}
    for word, (one, other) in SENSES.items():
        (plain_a, deep_a), (plain_b, deep_b) = (vectors(predictor, model, word, some) for some in (one, other))
        before.append(distances(torch.cat([plain_a, plain_b])))
        after.append(distances(torch.cat([deep_a, deep_b])))
        apart[word] = distances(deep_a, deep_b) - (distances(deep_a) + distances(deep_b)) / 2
    return Measured(
        effects={
            "before": max(before),
            "after": min(after),
            "senses": sum(value > 0 for value in apart.values()) / len(apart),
            "novelty": min(looks_ahead("encoder", seed) for seed in range(1, 6)),
            "decoder": max(looks_ahead("decoder", seed) for seed in range(1, 6)),
        },
        figures={f"other sense, less same sense: {word}": value for word, value in apart.items()},
        series={"before": before, "after": after},
    )


def draw(figure: Figure, measured: Sequence[Measured]) -> None:
    axes = figure.subplots()
    words = list(SENSES)
    for shift, key, colour in ((-0.2, "before", PALE), (0.2, "after", BLUE)):
        places = [n + shift for n in range(len(words))]
        bars = axes.bar(places, measured[0].series[key], 0.38, color=colour, edgecolor=BLUE, label=f"{key} the layers")
        axes.bar_label(bars, fmt=lambda distance: f"{abs(distance):.2f}")  # no distance is -0.00
    axes.set_xticks(range(len(words)), words)
    axes.set_ylabel("distance of its vectors, six sentences")
    axes.legend(frameon=False)


LAB = Lab(
    name="context",
    question="Does a word have one vector or many?",
    usual="BERT gives every word a vector that depends on both sides of its context, which was new.",
    answer="Before the layers a word has one vector, after them another in each sentence. Looking both ways was not "
    "new in BERT, the encoder of 2017 does it too; training it by hidden words was.",
    paragraphs=(
        "A table gives every word its first vector, the same wherever it stands: 'like' in 'I like it' and in 'it "
        "looks like a film'. Then every layer mixes in what stands around it. The lab reads four words with two "
        "meanings each in six sentences and compares their vectors: exactly one before the layers, different ones "
        "after them, and those of the same meaning closer to each other than those of different meanings.",
        "That both sides matter follows from attention without a mask. Exchange the last word of a sentence, and the "
        "vector of the first changes, in any encoder with the parts of the 2017 paper, trained or not; in a decoder it "
        "does not. What BERT added is a way to train such an encoder on plain text: a language model that saw both "
        "sides would see the word it has to guess, so some words are hidden.",
    ),
    formula="before: table[word]        after: a function of all words of the sentence",
    claims=(
        Claim(
            "before",
            "Before the encoder a word has one vector.",
            "Mikolov et al. 2013",
            "largest distance of a word's vectors in six sentences",
            Rule(high=1e-9),
        ),
        Claim(
            "after",
            "After it, one in each sentence.",
            "Peters et al. 2018; Devlin et al. 2019",
            "smallest mean distance of a word's vectors in six sentences",
            Rule(low=0.05),
        ),
        Claim(
            "senses",
            "Vectors of one meaning are closer than those of two.",
            "Wiedemann et al. 2019",
            "share of four words of which that is true",
            Rule(low=0.75),
        ),
        Claim(
            "novelty",
            "Context from both sides is BERT's novelty over the original encoder.",
            "often written",
            "change of the first word's vector when the last word changes, in a fresh encoder of 2017 (smallest of 5)",
            Rule(low=1e-4),
            correction="The original encoder looks both ways too. BERT's novelty is to train it by hidden words.",
        ),
        Claim(
            "decoder",
            "A decoder looks back only.",
            "Radford et al. 2018",
            "the same change in a decoder (largest)",
            Rule(high=0.0),
        ),
    ),
    measure=measure,
    draw=draw,
    read=("model/transformer.py", "tasks/masking.py"),
    tries=("qkv predict bundled-encoder 'i [MASK] this film very much .'", "qkv lab context RUN"),
    seeds=1,
    looks_at=("encoder",),
)
