"""`qkv explain`: one attention head worked through number by number, and what a causal mask does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from qkv import terminal
from qkv.cli.console import stdout

if TYPE_CHECKING:
    from torch import Tensor

    from qkv.explain.worked_head import Inside
    from qkv.model.attention import Attention

SENTENCE = ["the", "animal", "crossed", "the", "street", "because", "it", "was", "tired"]
FEATURES = ("living", "place", "asks")
MEANING = {"animal": (1.0, 0.0, 0.0), "street": (0.0, 1.0, 0.0), "it": (0.0, 0.0, 1.0)}  # all other words: zeros
ASKER = SENTENCE.index("it")


def explain() -> None:
    """Work through one attention head number by number, show what a causal mask does, and list the presets."""
    from qkv.cli.plan import show_presets
    from qkv.explain.worked_head import look_inside

    console = stdout()
    attention, x_LD = hand_made_head()
    _show_words(console, x_LD)
    _show_arithmetic(console, look_inside(attention, x_LD))
    _show_masks(console, attention, x_LD)
    show_presets(console)
    console.print(
        "\n[bold]Next[/bold]\n"
        "  qkv plan bert-base                          parameters, FLOPs and memory of BERT\n"
        "  qkv plan gpt2 --set model.layers=6          GPT-2 with half of its layers\n"
        "  qkv plan --help-recipe                      every recipe key with its accepted values\n"
        "  src/qkv/model/attention.py                  the code that just ran"
    )


def hand_made_head() -> tuple[Attention, Tensor]:
    """A real attention with weights set by hand so that a reader can follow them, and the sentence as vectors (L, 3).

    The query of a word that asks looks for something living; keys and values tell what a word is.
    """
    import torch

    from qkv.model.attention import Attention

    attention = Attention(
        width=3, heads=1, kv_heads=1, head_width=2, score="dot", scale="sqrt", bias=False, dropout=0.0
    )
    queries = [[0.0, 0.0, 6.0], [0.0, 0.0, 0.0]]  # asks -> looks for living; nothing looks for a place
    keys = values = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]  # living, place
    with torch.no_grad():
        attention.project.weight.copy_(torch.tensor(queries + keys + values))
        attention.output.weight.zero_()
    return attention, torch.tensor([MEANING.get(word, (0.0, 0.0, 0.0)) for word in SENTENCE])


def _show_words(console: Console, x_LD: Tensor) -> None:
    console.rule("[bold]One attention head, number by number", align="left")
    console.print(f"\n  {' '.join(SENTENCE)}\n")
    console.print(
        "Who is [bold]it[/bold]? Each word is three numbers here: is it living, is it a place, "
        "does it ask who is meant.\n"
        "The head turns them into a [bold]query[/bold] (what I look for), a [bold]key[/bold] (what I offer) "
        "and a [bold]value[/bold] (what I hold).\n"
        f"[bold]it[/bold] = {_vector(x_LD[ASKER].tolist())} asks, and its query looks for something living.\n"
    )


def _show_arithmetic(console: Console, inside: Inside) -> None:
    from qkv.explain.worked_head import work_through

    worked = work_through(inside, ASKER)
    query = inside.q_HLK[0, ASKER].tolist()
    console.print(f"query of [bold]it[/bold]: q = {_vector(query)}        d_k = {len(query)}")
    table = Table(box=None, padding=(0, 1), header_style="bold")
    for name in ("word", "key k", "q · k", "/ √d_k", "e^x", "weight"):
        table.add_column(name, justify="left" if name == "word" else "right", no_wrap=True)
    table.add_column("", no_wrap=True, width=16)
    table.add_column("value v", no_wrap=True)
    for i, word in enumerate(SENTENCE):
        numbers = (worked.products[i], worked.scaled[i], worked.exponentials[i], worked.weights[i])
        cells = [
            _vector(inside.k_HLK[0, i].tolist()),
            *(f"{n:.3f}" for n in numbers),
            terminal.bar(worked.weights[i], 16),
        ]
        table.add_row(word, *cells, _vector(inside.v_HLK[0, i].tolist()))
    table.add_row("", "", "", "sum", f"{sum(worked.exponentials):.3f}", f"{sum(worked.weights):.3f}", "", "")
    console.print(table)
    difference = max(abs(a - b) for a, b in zip(worked.output, inside.mixed_HLK[0, ASKER].tolist(), strict=True))
    console.print(
        f"\nThe weights times the values: [bold]{_vector(worked.output)}[/bold]. "
        f"[bold]it[/bold] now holds mostly [italic]{FEATURES[0]}[/italic]: it is the animal.\n"
        f"The model's fused kernel gives the same; largest difference {difference:.1e}.\n"
    )


def _show_masks(console: Console, attention: Attention, x_LD: Tensor) -> None:
    import torch

    from qkv.explain.worked_head import look_inside
    from qkv.model.masks import causal

    console.rule("[bold]All queries at once, and what a causal mask does", align="left")
    console.print(
        "\nRows are queries, columns are keys; every row sums to one. Words that ask nothing attend to all equally.",
        "\n",
    )
    pos = torch.arange(len(SENTENCE))[None]
    both = look_inside(attention, x_LD).weights_HLL[0].tolist()
    back = look_inside(attention, x_LD, keep=causal(pos, pos)).weights_HLL[0].tolist()
    console.print(terminal.heat_map(SENTENCE, SENTENCE, both, "encoder: every word attends to every word"))
    console.print()
    console.print(
        terminal.heat_map(SENTENCE, SENTENCE, back, "decoder: no word attends to a later one (· is exactly 0)")
    )
    console.print()


def _vector(numbers: Sequence[float]) -> str:
    return "(" + ", ".join(f"{number:.3g}" for number in numbers) + ")"
