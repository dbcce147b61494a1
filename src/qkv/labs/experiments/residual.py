"""What the residual connection keeps: a path for the gradient, and which word is which."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from qkv.config.recipe import ModelConfig
from qkv.hub import path_of
from qkv.labs import texts
from qkv.labs.arms import bench, settings
from qkv.labs.lab import Claim, Lab, Measured, Rule, Setting, mean_series
from qkv.model.build import build_model
from qkv.model.transformer import Decoder, Encoder
from qkv.plots import COLOURS, DASHES, MARKS
from qkv.predict.predictor import load_predictor
from qkv.schema import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WORDS, DEEP, WIDTH = 50, 12, 64
ROWS, LENGTH, MODELS = 64, 32, 8


def encoder(seed: int, **parts: Any) -> Encoder:
    config = ModelConfig(family="encoder", vocabulary=WORDS, width=WIDTH, heads=4, layers=DEEP, feedforward=128,
                         positions="sinusoidal", embedding_scale=True, norm_place="pre", **parts)  # fmt: skip
    model = build_model(config, seed=seed)
    assert isinstance(model, Encoder)
    return model.eval()


def some_tokens(seed: int) -> Tensor:
    return torch.randint(WORDS, (ROWS, LENGTH), generator=torch.Generator().manual_seed(seed))


def states_of(model: Encoder | Decoder, tokens_BL: Tensor) -> list[Tensor]:
    """What goes into each block, and what comes out of the last (B, L, D)."""
    found: list[Tensor] = []
    hooks = [block.register_forward_pre_hook(lambda _, given: found.append(given[0])) for block in model.stack.blocks]
    hooks.append(model.stack.blocks[-1].register_forward_hook(lambda _, given, made: found.append(made[0])))
    model(tokens_BL)
    for hook in hooks:
        hook.remove()
    return found


def kept_gradient(model: Encoder, seed: int) -> float:
    """The gradient at the first block's input, in units of that at the last block's."""
    states = states_of(model, some_tokens(seed)[:8])
    pull = torch.randn(states[-1].shape, generator=torch.Generator().manual_seed(seed))
    first, last = torch.autograd.grad((states[-1] * pull).sum(), [states[0], states[-2]])
    return float(first.norm() / last.norm())


def kept(seed: int, **parts: Any) -> float:
    """That of several fresh models: their geometric mean."""
    ratios = [kept_gradient(encoder(1000 * seed + number, **parts), seed) for number in range(MODELS)]
    return math.exp(sum(math.log(ratio) for ratio in ratios) / MODELS)


def straight_path(model: Encoder, seed: int) -> float:
    """How much of a token's own features reaches the top as it is: the mean of the derivatives of each feature at the
    top by the same feature at the bottom, by random signs (Hutchinson, 1989)."""
    states = states_of(model, some_tokens(seed)[:8])
    dice, found = torch.Generator().manual_seed(seed), []
    for _ in range(16):
        signs = torch.randint(0, 2, states[0].shape, generator=dice).float() * 2 - 1
        (back,) = torch.autograd.grad((states[-1] * signs).sum(), states[0], retain_graph=True)
        found.append(float((back * signs).mean()))
    return sum(found) / len(found)


@torch.no_grad()
def told_apart(model: Encoder | Decoder, tokens_BL: Tensor) -> list[float]:
    """After each layer: how often a position's state is nearest to the mean state of its own token, among all tokens.
    Means are of one half of the rows, positions of the other."""
    half, shares = len(tokens_BL) // 2, []
    known, asked = tokens_BL[:half].flatten(), tokens_BL[half:].flatten()
    names = known.unique()
    asked_too = torch.isin(asked, names)
    for states in states_of(model, tokens_BL):
        flat = states.flatten(0, 1)
        flat = flat - flat.mean(0)
        one, other = flat[: len(known)], flat[len(known) :]
        means = torch.stack([one[known == name].mean(0) for name in names])
        nearest = names[torch.cdist(other, means).argmin(1)]
        shares.append(float((nearest == asked)[asked_too].float().mean()))
    return shares


def of_a_trained_model(run: Path | None) -> list[float]:
    """The same of a model that was trained for real, on real sentences: the user's own, or the bundled encoder."""
    predictor = load_predictor(path_of("bundled-encoder") if run is None else run)
    model = predictor.model
    if not isinstance(model, Encoder | Decoder):
        raise UserError(f"{run}: the lab residual looks at encoders and decoders")
    ids = [one for one in predictor.tokenizer.ids(texts.paragraphs()) if len(one) >= LENGTH][:200]
    return told_apart(model, torch.tensor([one[:LENGTH] for one in ids]))


def measure(setting: Setting) -> Measured:
    seed = setting.seed
    arms = {on: encoder(seed, residual=on, norm="layer") for on in (True, False)}
    gradients = {
        "no norm, off": kept(seed, residual=False, norm="none"),
        "LayerNorm, on": kept(seed, residual=True, norm="layer"),
        "LayerNorm, off": kept(seed, residual=False, norm="layer"),
    }
    apart = {on: told_apart(arm, some_tokens(seed + 100)) for on, arm in arms.items()}
    losses = {}
    with bench(setting.tick) as place:
        corpus = place.text("help", texts.paragraphs())
        for on in (True, False):
            what, train = f"residual {'on' if on else 'off'}", settings(400 if setting.full else 120)
            losses[on] = place.decoder(what, corpus, setting, train, width=WIDTH, layers=6, residual=on).loss
    return Measured(
        effects={
            "vanish": gradients["no norm, off"] ** (1 / (DEEP - 1)),
            "path": straight_path(arms[True], seed),
            "norms": gradients["LayerNorm, off"],
            "token": apart[True][-1] - apart[False][-1],
            "training": losses[False] - losses[True],
        },
        figures={
            **{f"gradient kept, {name}": value for name, value in gradients.items()},
            "own features at the top, off": straight_path(arms[False], seed),
            "loss, on": losses[True],
            "loss, off": losses[False],
        },
        series={"on": apart[True], "off": apart[False], "trained": of_a_trained_model(setting.run)},
    )


def draw(figure: Figure, measured: Sequence[Measured]) -> None:
    axes = figure.subplots()
    names = {"on": "fresh, with residuals", "off": "fresh, without", "trained": "a trained model"}
    for number, (key, name) in enumerate(names.items()):
        means = mean_series(measured, key)
        look: dict[str, Any] = {"color": COLOURS[number], "linestyle": DASHES[number], "marker": MARKS[number]}
        axes.plot(range(len(means)), means, label=name, **look)
    axes.axhline(1 / WORDS, color="#777777", linewidth=0.8)
    axes.set_ylim(0, 1.05)
    axes.set_xlabel("layers passed (grey line: guessing)")
    axes.set_ylabel("positions whose state still tells their word")
    axes.legend(frameon=False)


LAB = Lab(
    name="residual",
    question="Why is there a residual connection around every part of a block?",
    usual="Because without it gradients vanish with depth.",
    answer="It keeps a straight path of gradient one, and each position's state about its own word. Where every layer "
    "has a LayerNorm, the gradient does not vanish without it; what is lost is which word is which.",
    paragraphs=(
        "A residual adds what a part of the block has found to what it was given: x + part(x). The derivative of x by "
        "x is 1, so there is a path from the top to the bottom on which nothing is multiplied away. The lab measures "
        "it as the mean derivative of each feature at the top by the same feature at the bottom. And the sum keeps the "
        "word itself: after twelve layers with residuals a position's state still tells which word stands there.",
        "Without residuals and without norms, the gradient indeed vanishes layer by layer. But a LayerNorm in every "
        "layer sets the size right again, so in a real Transformer the size of the gradient survives. What does not "
        "survive is the difference between words: attention takes means, again and again, until all positions are "
        "alike (Dong et al. 2021). Either way, such a model hardly learns; the last measurement trains both.",
    ),
    formula="y = x + part(norm(x)),   dy/dx = 1 + ...",
    claims=(
        Claim(
            "vanish",
            "Without residuals (and norms) gradients vanish with depth.",
            "He et al. 2016",
            "factor by which the gradient changes with every layer, 12 layers",
            Rule(high=0.7),
        ),
        Claim(
            "path",
            "With them a path of gradient one remains.",
            "He et al. 2016, identity mappings",
            "mean derivative of a feature at the top by the same feature at the bottom, 12 layers",
            Rule(0.5, 2.0),
        ),
        Claim(
            "token",
            "Residuals keep token i's state about token i.",
            "Dong et al. 2021",
            "positions whose state tells their word after 12 layers: share with, less share without",
            Rule(low=0.3),
        ),
        Claim(
            "training",
            "Without residuals a Transformer hardly learns.",
            "He et al. 2016",
            "loss without, less loss with them (6 layers, nats a word, held-out text)",
            Rule(low=0.1),
        ),
        Claim(
            "norms",
            "In a Transformer without residuals the gradient vanishes.",
            "often written",
            "gradient at the first layer in units of the last, LayerNorm in each, no residuals",
            Rule(low=0.1),
            correction="Not where every layer has a LayerNorm, which sets the size right; what is lost is which "
            "word is which.",
        ),
    ),
    measure=measure,
    draw=draw,
    read=("model/layers.py",),
    tries=("qkv lab depth", "qkv lab norm", "qkv lab residual RUN"),
    looks_at=("encoder", "decoder"),
)
