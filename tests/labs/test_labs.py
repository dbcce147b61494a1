"""Labs decide by rules that were written down before, and can fail: with another mechanism inside the model, the same
lab comes to another verdict."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.text import Text
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from qkv import bundled, labs
from qkv.labs import published, runner
from qkv.labs.experiments import additive, cost, mask
from qkv.labs.experiments import heads as heads_lab
from qkv.labs.experiments import residual as residual_lab
from qkv.labs.lab import (
    CORRECTED,
    FAILS,
    HOLDS,
    UNDECIDED,
    Claim,
    Finding,
    Lab,
    Measured,
    Result,
    Rule,
    Setting,
)
from qkv.labs.report import page, picture, said
from qkv.labs.runner import Step, run_lab, run_labs
from qkv.model import attention, build, heads, layers, positions, transformer
from qkv.model.attention import How
from qkv.predict import decode
from qkv.predict import generate as generation
from qkv.schema import UserError
from qkv.training import build as training_build

EXACT = ("softmax", "count", "depth", "xor", "mask", "context")  # fast enough for every run of the tests
LONG = tuple(name for name in labs.NAMES if name not in EXACT)
TIMED = {"cost": "seconds", "mask": "times_faster", "additive": "times_faster"}  # lab -> what takes its times
ROOT = Path(__file__).parent.parent.parent
PATTERN = re.compile(r"https?://(?!www\.w3\.org)|<script|<link|@import|src=")


class WorkClock(TorchDispatchMode):
    """A clock that counts the work of torch instead of seconds: for each operation a constant, the numbers that it
    writes, and its floating-point operations. So a busy machine decides nothing."""

    CALL = 10_000.0

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.work = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        flops = flop_registry.get(func._overloadpacket)
        self.work += self.CALL + sum(one.numel() for one in pytree.tree_leaves(found) if isinstance(one, Tensor))
        self.work += flops(*args, **(kwargs or {}), out_val=found) if flops else 0.0
        return found

    def perf_counter(self) -> float:
        return self.work

    def runs(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, with its work counted."""

        def counted(*given: Any, **named: Any) -> Any:
            with self:
                return function(*given, **named)

        return counted


def count_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Labs that take the time of something count its work instead."""
    for name, function in TIMED.items():
        module, clock = import_module(f"qkv.labs.experiments.{name}"), WorkClock()
        monkeypatch.setattr(module, "time", clock)
        monkeypatch.setattr(module, function, clock.runs(getattr(module, function)))


@pytest.fixture(autouse=True)
def work_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    count_work(monkeypatch)


# --- rules, intervals, verdicts


def claim(rule: Rule, correction: str = "", name: str = "it") -> Claim:
    return Claim(name, "Water is wet.", "a book", "wetness", rule, correction)


def test_a_rule_wants_the_whole_interval_on_its_side() -> None:
    rule = Rule(1.0, 2.0)
    assert rule.decide((1.0, 2.0)) == HOLDS
    assert rule.decide((0.9, 1.5)) == rule.decide((1.5, 2.1)) == rule.decide((0.0, 3.0)) == UNDECIDED
    assert rule.decide((0.0, 0.9)) == rule.decide((2.1, 9.0)) == FAILS
    assert rule.decide((math.nan, 1.5)) == UNDECIDED
    assert Rule(low=0.0).decide((-0.1, 0.2)) == UNDECIDED  # crosses zero: no claim is made
    words = [str(one) for one in (Rule(high=3), Rule(low=0.5), Rule(1, 2), Rule(64, 64))]
    assert words == ["at most 3", "at least 0.5", "from 1 to 2", "exactly 64"]


def test_the_interval_is_students() -> None:
    """Three values 1, 2, 3: mean 2, deviation 1, so 2 +- 4.303 / sqrt(3)."""
    finding = Finding(claim(Rule(low=0.0)), (1.0, 2.0, 3.0))
    assert finding.interval == pytest.approx((2 - 2.4843, 2 + 2.4843), abs=1e-3)
    assert finding.decision == UNDECIDED
    assert Finding(claim(Rule(low=0.0)), (0.5,)).interval == (0.5, 0.5)
    assert Finding(claim(Rule(low=0.0)), (1.0, math.inf, 2.0)).decision == UNDECIDED


def made_lab(claims: Sequence[Claim], values: dict[str, float], seeds: int = 1) -> Lab:
    return Lab("made", "Why?", "So.", "So it is.", ("One.", "Two `code`."), "a = b", tuple(claims),
               lambda setting: Measured(values, {"n": 1.0}), lambda figure, measured: None, ("plan.py",), ("qkv",),
               seeds)  # fmt: skip


@pytest.mark.parametrize(
    ("claims", "wetness", "verdict"),
    [
        ([claim(Rule(low=1.0))], 2.0, HOLDS),
        ([claim(Rule(low=1.0), correction="It is dry.")], 2.0, CORRECTED),
        ([claim(Rule(low=1.0)), claim(Rule(low=3.0), name="other")], 2.0, FAILS),
        ([claim(Rule(low=1.0), correction="It is dry.")], 0.0, FAILS),
    ],
)
def test_the_verdict_is_the_worst_decision(claims: list[Claim], wetness: float, verdict: str) -> None:
    result = run_lab(made_lab(claims, {"it": wetness, "other": wetness}))
    assert result.verdict == verdict
    assert json.loads(json.dumps(result.as_dict()))["verdict"] == verdict


def test_an_erratum_that_is_none_is_said_so() -> None:
    shown, not_shown = (Finding(claim(Rule(low=1.0), "It is dry."), (value,)) for value in (2.0, 0.0))
    assert said(shown) == "✓ corrected"
    assert said(not_shown) == "✗ the sentence holds after all"


def test_a_full_run_resumes_where_it_stopped(tmp_path: Path) -> None:
    asked: list[int] = []

    def measure(setting: Setting) -> Measured:
        asked.append(setting.seed)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return Measured({"it": float(setting.seed)}, {}, {"curve": [1.0, 2.0]})

    lab = replace(made_lab([claim(Rule(low=0.0))], {}), measure=measure, seeds=3, full_seeds=4)
    with pytest.raises(KeyboardInterrupt):
        run_lab(lab, full=True, folder=tmp_path / "labs")
    result = run_lab(lab, full=True, folder=tmp_path / "labs")
    assert asked == [101, 102, 103, 103, 104]
    assert result.findings[0].values == (101.0, 102.0, 103.0, 104.0)
    assert result.measured[0].series == {"curve": [1.0, 2.0]}


@pytest.mark.slow
def test_side_by_side_gives_what_one_after_the_other_does(tmp_path: Path) -> None:
    steps: list[Step] = []
    side_by_side = list(run_labs(["xor", "depth"], folder=tmp_path, report=steps.append))
    assert [result.lab.name for result in side_by_side] == ["xor", "depth"]
    for result in side_by_side:
        alone = run_lab(result.lab)
        assert [one.effects for one in result.measured] == [one.effects for one in alone.measured]
    total = sum(len(result.measured) for result in side_by_side)
    assert len(list(tmp_path.iterdir())) == total
    assert steps[0] == Step("xor", "starting", 0, total)


@pytest.mark.faults
@pytest.mark.parametrize(
    ("end", "error"),
    [
        (lambda: os.kill(multiprocessing.active_children()[0].pid or 0, signal.SIGKILL), BrokenProcessPool),
        (lambda: signal.raise_signal(signal.SIGINT), KeyboardInterrupt),
    ],
    ids=["a process is killed", "Ctrl-C"],
)
def test_no_process_stays_behind(end: Callable[[], None], error: type[BaseException]) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores Ctrl-C
    try:
        with pytest.raises(error):
            list(run_labs(["order"], report=lambda step: end() if multiprocessing.active_children() else None))
    finally:
        signal.signal(signal.SIGINT, before)
    assert not multiprocessing.active_children()


SCRIPT = """
from qkv.cli.main import main
if __name__ == "__main__":
    main()
"""


def test_workers_import_nothing_from_the_current_folder(tmp_path: Path) -> None:
    """A worker is `python -c ...`, which would have the current folder on sys.path."""
    place = tmp_path / "place"
    for name in ("qkv", "multiprocessing", "torch"):
        (place / name).mkdir(parents=True)
        (place / name / "__init__.py").write_text(f"raise SystemExit('the planted {name} was imported')\n")
    (tmp_path / "script").mkdir()
    (tmp_path / "script" / "qkv-script.py").write_text(SCRIPT)  # as a console script: its own folder is on sys.path
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}

    def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)

    unsafe = run(sys.executable, "-c", "import multiprocessing")
    assert "the planted multiprocessing was imported" in unsafe.stderr  # so this test would see it
    ended = run(sys.executable, tmp_path / "script" / "qkv-script.py", "lab", "softmax", "count", "--json")
    assert ended.returncode == 0, ended.stderr
    assert "planted" not in ended.stderr
    assert [json.loads(line)["name"] for line in ended.stdout.splitlines()] == ["softmax", "count"]


# --- the labs


@pytest.mark.parametrize("name", labs.NAMES)
def test_a_lab_explains_itself(name: str) -> None:
    lab = labs.load(name)
    assert lab.name == name
    assert lab.question.endswith("?")
    assert all(len(paragraph) > 100 for paragraph in lab.paragraphs)
    names = [one.name for one in lab.claims]
    assert len(set(names)) == len(names) >= 4
    assert all(one.sentence.endswith((".", ",")) and one.source and one.effect for one in lab.claims)
    root = Path(labs.__file__).parent.parent
    assert all((root / file).is_file() for file in lab.read)
    assert lab.tries
    assert lab.seeds == 1 or 3 <= lab.seeds <= lab.full_seeds


@pytest.mark.parametrize("name", labs.NAMES)
def test_a_claim_stands_where_the_part_lives(name: str) -> None:
    """So that who reads the code finds the experiment."""
    lab, root = labs.load(name), Path(labs.__file__).parent.parent
    code = " ".join(" ".join((root / file).read_text(encoding="utf-8").replace("#", " ").split()) for file in lab.read)
    assert f"measured by `qkv lab {name}`" in code
    assert any(claim.sentence.rstrip(".") in code for claim in lab.claims)


def test_every_row_of_the_table_of_claims_has_a_lab() -> None:
    assert set(labs.NAMES) == {
        "scale", "softmax", "residual", "norm", "depth", "xor", "order", "positions", "long-range", "heads", "additive",
        "who-asks", "mask", "cost", "count", "beam", "pretraining", "special", "context",
    }  # fmt: skip


@pytest.mark.slow
def test_labs_look_at_a_model_of_the_users() -> None:
    """What they say of it is about it, and not about the bundled one that they look at otherwise."""
    gpt, encoder = bundled.folder("bundled-gpt"), bundled.folder("bundled-encoder")
    own, usual = (heads_lab.trained_and_fresh(Setting(1, run=run))[0] for run in (gpt, None))
    assert own.weights != usual.weights
    assert residual_lab.of_a_trained_model(gpt) != residual_lab.of_a_trained_model(None)
    given, default = (labs.load("context").measure(Setting(1, run=run)) for run in (encoder, None))
    assert given == default
    assert {name for name in labs.NAMES if labs.load(name).looks_at} == {
        "heads", "beam", "context", "special", "residual",
    }  # fmt: skip


def test_an_unknown_lab_is_named() -> None:
    with pytest.raises(UserError, match=r"^lab 'scala': did you mean scale\?"):
        labs.load("scala")


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    with pytest.MonkeyPatch.context() as patch:
        count_work(patch)
        return {name: run_lab(labs.load(name)) for name in EXACT}


@pytest.mark.parametrize("name", EXACT)
def test_the_verdict_of_an_exact_lab(results: dict[str, Result], name: str) -> None:
    wanted = HOLDS if name == "xor" else CORRECTED
    found = {finding.claim.name: (finding.decision, finding.values) for finding in results[name].findings}
    assert results[name].verdict == wanted, found


def test_no_other_lab_takes_the_time() -> None:
    folder = Path(labs.__file__).parent / "experiments"
    assert {file.stem for file in folder.glob("*.py") if "import time" in file.read_text(encoding="utf-8")} == set(
        TIMED
    )


def test_the_exponents_of_the_cost_are_those_of_the_work() -> None:
    """Of 4 n^2 d operations, and of a table of n by n that is written a few times."""
    found = {
        name: cost.exponent(sizes, [cost.seconds(cost.pair_products(*shape(size)), 1) for size in sizes])
        for name, sizes, shape in (
            ("n", (64, 96, 128), lambda size: (size, 256)),
            ("d", (256, 512, 1024), lambda size: (64, size)),
        )
    }
    assert found == {"n": pytest.approx(2, abs=0.1), "d": pytest.approx(1, abs=0.1)}


def test_real_times_are_positive_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more is asked of a time."""
    monkeypatch.undo()
    assert all(vars(module)["time"] is time for module in (additive, cost, mask))  # the real clock
    model, tokens = mask.decoder(seed=1), mask.some_words(4, seed=1)
    found = [cost.seconds(cost.pair_products(4, 8), 2), mask.times_faster(model, tokens), additive.times_faster()]
    assert all(math.isfinite(one) and one > 0 for one in found)


def test_figures_with_known_answers(results: dict[str, Result]) -> None:
    softmax, count = results["softmax"].figures, results["count"]
    assert [round(softmax[f"weight of score {score}"], 3) for score in (2, 1, 0)] == [0.665, 0.245, 0.090]
    assert round(softmax["sum of e^2, e^1, e^0"], 3) == 11.107
    effects = count.measured[0].effects
    wanted = {"head": 64, "projection": 589_824, "three": 1_769_472, "four": 2_359_296, "biases": 2_362_368,
              "base": 63_082_496}  # fmt: skip
    assert {name: effects[name] for name in wanted} == wanted
    assert 40_000 < count.figures["pieces that would make 65 million"] < 41_000
    xor = results["xor"].findings
    assert [finding.effect for finding in xor][:3] == [0.75, 1.0, 1.0]
    masked = {finding.claim.name: finding.effect for finding in results["mask"].findings}
    assert masked["future"] == masked["zero"] == 0.0


def test_the_page_stands_alone(results: dict[str, Result]) -> None:
    text = page(list(results.values()), "Labs", "Measured <here>.")
    assert not PATTERN.search(text)
    assert "Measured &lt;here&gt;." in text
    for name, result in results.items():
        assert f'id="{name}"' in text
        assert all(re.sub(r"\s+", " ", one.effect) for one in result.lab.claims)
        assert result.lab.tries[0].split()[0] in text
        file = f"src/qkv/labs/experiments/{name}.py"
        assert f"this lab is <code>{file}</code>" in text
        assert (ROOT / file).is_file()
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))  # pictures share no names
    assert set(re.findall(r'href="#([^"]+)"', text)) <= set(ids)


def test_powers_of_ten_are_drawn_as_such(results: dict[str, Result], monkeypatch: pytest.MonkeyPatch) -> None:
    """And not as the formula that matplotlib makes of them."""
    powers, save = list[Text](), Figure.savefig

    def look(figure: Figure, *given: Any, **how: Any) -> None:
        save(figure, *given, **how)
        powers.extend(text for text in figure.findobj(Text) if "10^" in text.get_text())

    monkeypatch.setattr(Figure, "savefig", look)
    picture(results["softmax"], "svg")
    assert powers
    assert all(text.get_parse_math() for text in powers)


@pytest.mark.parametrize("name", EXACT)
def test_every_lab_draws_something(results: dict[str, Result], name: str) -> None:
    figure = Figure()
    labs.load(name).draw(figure, results[name].measured)
    assert figure.axes
    assert all(axes.get_xlabel() or axes.get_ylabel() or axes.get_title() for axes in figure.axes)


# --- labs can fail: the same lab, another mechanism inside the model

Patch = Callable[[pytest.MonkeyPatch], None]


def naive(q: Tensor, k: Tensor, how: How) -> Tensor:
    """A softmax that does not subtract the largest score."""
    powers = how.score(q, k).exp()
    return powers / powers.sum(-1, keepdim=True)


class Larger(attention.Linear):
    """A projection that gives one feature more than it was asked for."""

    def __init__(self, inputs: int, outputs: int, bias: bool = True) -> None:
        super().__init__(inputs, outputs + 1, bias)


def causal_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    made = transformer.Stack

    def stack(**parts: Any) -> transformer.Stack:
        return made(**{**parts, "causal": True})

    monkeypatch.setattr(build, "Stack", stack)


def twice(monkeypatch: pytest.MonkeyPatch) -> None:
    once = attention.plain
    monkeypatch.setattr(cost, "plain", lambda q, k, v, how: once(q, k, v, how) + once(q, k, v, how))


def always_residual(monkeypatch: pytest.MonkeyPatch) -> None:
    def after(self: layers.Residual, x: Tensor, part: Tensor) -> Tensor:
        y = x + self.drop(part)
        return y if self.pre else self.norm(y)

    monkeypatch.setattr(layers.Residual, "after", after)


def shorter_waves(monkeypatch: pytest.MonkeyPatch) -> None:
    angles = positions._angles
    monkeypatch.setattr(positions, "_angles", lambda pos, width, base: angles(pos, width, 100.0))


def nothing_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    from qkv.labs.experiments import heads
    from qkv.predict.predictor import load_predictor as load

    def fresh(path: Path) -> Any:
        found = load(path)
        found.model = build.build_model(found.config, seed=5).eval()
        return found

    monkeypatch.setattr(heads, "load_predictor", fresh)


def blind_to_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    remember = attention.Attention.remember
    monkeypatch.setattr(attention.Attention, "remember", lambda self, source: remember(self, torch.zeros_like(source)))


class Multiplied(attention.Additive):
    """The additive score's name and weights, but a dot product inside."""

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return (q * self.vector_HK[:, None]) @ k.transpose(-1, -2)


def greedy_in_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    search = decode.beam
    monkeypatch.setattr(generation, "beam", lambda *given, **how: search(*given, **{**how, "width": 1}))


SWAPPED: dict[str, tuple[str, Patch]] = {
    "softmax": ("overflow", lambda m: m.setattr(attention, "weigh", naive)),
    "count": ("four", lambda m: m.setattr(attention, "Linear", Larger)),
    "xor": ("block", lambda m: m.setitem(layers.ACTIVATIONS, "gelu", lambda x: x)),
    "depth": ("quarter", lambda m: m.setitem(layers.ACTIVATIONS, "sigmoid", torch.relu)),
    "mask": ("future", lambda m: m.setattr(transformer, "causal", lambda a, b: torch.ones(1, 1, 1, 1).bool())),
    "context": ("novelty", causal_everywhere),
    "cost": ("pairs", twice),
    "order": ("equivariant", lambda m: m.setitem(build.POSITIONS, "none", build.POSITIONS["sinusoidal"])),
    "scale": ("saturates", lambda m: m.setitem(attention.SCALES, "none", attention.SCALES["sqrt"])),
    "residual": ("token", always_residual),
    "positions": ("formula", shorter_waves),
    "heads": ("differ", nothing_learnt),
    "additive": ("faster", lambda m: m.setitem(attention.SCORES, "additive", Multiplied)),
    "norm": ("beside", lambda m: m.setitem(layers.NORMS, "batch", layers.NORMS["layer"])),
    "who-asks": ("transformer", blind_to_the_source),
    "long-range": ("plateau", lambda m: m.setitem(build.POSITIONS, "rotary", build.POSITIONS["learned"])),
    "special": ("by-itself", lambda m: m.setitem(heads.POOLS, "mean", heads.POOLS["first"])),
    "pretraining": ("beats", lambda m: m.setattr(training_build, "copy_weights", lambda *given: [])),
    "beam": ("likelier", greedy_in_truth),
}  # fmt: skip


def swapped(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One seed decides here as all of them would: the effect is gone, not smaller."""
    claim_name, patch = SWAPPED[name]
    patch(monkeypatch)
    lab = labs.load(name)
    result = Result(lab, (lab.measure(Setting(seed=1)),))
    decided = {finding.claim.name: finding.decision for finding in result.findings}
    assert decided[claim_name] == FAILS
    assert result.verdict == FAILS


@pytest.mark.parametrize("name", EXACT)
def test_with_another_mechanism_the_verdict_is_another(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    swapped(name, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
def test_with_another_mechanism_a_trained_verdict_is_another(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    swapped(name, monkeypatch)


def test_results_come_with_the_package_and_are_of_these_claims() -> None:
    found = published.results()
    assert set(found) == set(labs.NAMES)
    for name, one in found.items():
        assert one["full"]
        assert [claim["name"] for claim in one["claims"]] == [claim.name for claim in labs.load(name).claims]
        assert [claim["rule"] for claim in one["claims"]] == [str(claim.rule) for claim in labs.load(name).claims]
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", one["date"])
        assert published.sentence(name).startswith(f"measured at full size on {one['date']}, ")
    written = ROOT / "docs" / "questions.md"
    assert written.read_text(encoding="utf-8") == published.questions(), (
        "python -m qkv.labs.published > docs/questions.md"
    )


def test_the_hash_of_the_code_changes_with_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    before = runner.code_hash()
    runner.code_hash.cache_clear()
    monkeypatch.setattr(runner, "files", lambda package: Path(labs.__file__).parent)
    assert runner.code_hash() != before
    runner.code_hash.cache_clear()
