"""Proven here: every named model has its paper's sizes and cites it, a recipe can start from one and change it, and a
model that cannot fit the machine is refused before anything is allocated.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib.resources import files
from pathlib import Path

import pytest

import qkv
from qkv.config import presets, recipes
from qkv.config.recipe import FAMILIES_OF_TASK, ModelConfig
from qkv.model import build, build_model, lay_out
from qkv.runtime import memory_bytes
from qkv.schema import UserError

KNOWN = ", ".join(presets.names())
SOURCES = ", ".join(dict.fromkeys([*recipes.names(), *presets.names()]))

SIZES = {  # width, heads, layers, feedforward, vocabulary, as printed in the paper or released with it
    "bart-base": (768, 12, 6, 3072, 50265),
    "bert-base": (768, 12, 12, 3072, 30522),
    "bert-mini": (256, 4, 4, 1024, 30522),
    "bert-tiny": (128, 2, 2, 512, 30522),
    "gpt-nano": (48, 3, 3, 192, 50257),
    "gpt2": (768, 12, 12, 3072, 50257),
    "llama2-7b": (4096, 32, 32, 11008, 32000),
    "marian-base": (512, 8, 6, 2048, 58101),
    "t5-small": (512, 8, 6, 2048, 32128),
    "vaswani-base": (512, 8, 6, 2048, 37000),
    "vaswani-big": (1024, 16, 6, 4096, 37000),
}


def refused(source: str, *settings: str) -> str:
    with pytest.raises(UserError) as caught:
        recipes.resolve(source, settings)
    return str(caught.value)


def written(folder: Path, text: str, name: str = "my.toml") -> str:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return str(file)


# The presets themselves


def test_the_promised_presets_exist() -> None:
    promised = {"vaswani-base", "vaswani-big", "bert-base", "bert-mini", "bert-tiny", "gpt2", "gpt-nano"}
    assert promised <= set(presets.names())
    assert presets.names() == sorted(presets.names())


@pytest.mark.parametrize("name", presets.names())
def test_a_preset_loads_and_can_be_laid_out(name: str) -> None:
    model = presets.load(name)
    assert model.vocabulary > 0
    assert all(weight.is_meta for weight in lay_out(model).parameters())
    table = tomllib.loads(files(presets).joinpath(f"{name}.toml").read_text(encoding="utf-8"))
    assert model == ModelConfig.read(table)
    assert "preset" not in table


@pytest.mark.parametrize("name", presets.names())
def test_a_preset_opens_with_its_source_and_year(name: str) -> None:
    text = files(presets).joinpath(f"{name}.toml").read_text(encoding="utf-8")
    assert text.startswith("# ")
    citation = presets.citation(name)
    assert "#" not in citation
    assert re.search(r"\([A-Z][\w-]+( et al\.| and [A-Z]\w+)?(, (19|20)\d\d)?\)", citation), citation
    assert re.search(r"\b(19|20)\d\d\b", citation), citation


@pytest.mark.parametrize("name", SIZES)
def test_sizes_are_the_papers(name: str) -> None:
    model = presets.load(name)
    assert (model.width, model.heads, model.layers, model.feedforward, model.vocabulary) == SIZES[name]


def test_every_preset_of_a_paper_is_in_the_table_above() -> None:
    assert set(SIZES) == {name for name in presets.names() if not name.startswith("small-")}


def test_parts_are_the_papers() -> None:
    """Pre- or post-norm, the choice people mix up most, and positions."""
    parts = {name: (presets.load(name).norm_place, presets.load(name).positions) for name in presets.names()}
    assert parts["vaswani-base"] == parts["vaswani-big"] == ("post", "sinusoidal")
    assert parts["bert-base"] == parts["bert-mini"] == parts["bert-tiny"] == ("post", "learned")
    assert parts["gpt2"] == parts["gpt-nano"] == ("pre", "learned")
    assert (parts["bart-base"], parts["marian-base"]) == (("post", "learned"), ("post", "sinusoidal"))
    assert (parts["t5-small"], parts["llama2-7b"]) == (("pre", "t5"), ("pre", "rotary"))


@pytest.mark.parametrize("name", presets.names())
def test_a_parameter_count_in_a_comment_is_true(name: str) -> None:
    counts = re.findall(r"([\d,]{9,}) parameters", presets.citation(name))
    counted = sum(weight.numel() for weight in lay_out(presets.load(name)).parameters())
    assert [int(count.replace(",", "")) for count in counts] == [counted] * len(counts)


def test_some_comments_do_count_parameters() -> None:
    counting = [name for name in presets.names() if re.search(r"[\d,]{9,} parameters", presets.citation(name))]
    assert {"bert-base", "gpt2", "vaswani-base"} <= set(counting)


def test_citation_is_one_readable_line() -> None:
    assert presets.citation("vaswani-base").startswith(
        'The base model of "Attention Is All You Need" (Vaswani et al., 2017), table 3, first row. Shared vocabulary'
    )


def test_an_unknown_preset_names_the_nearest() -> None:
    for load in (presets.load, presets.citation):
        with pytest.raises(UserError) as caught:
            load("bert-bsae")
        assert str(caught.value) == f"preset 'bert-bsae': unknown; did you mean bert-base? known: {KNOWN}"


@pytest.mark.parametrize("name", ["../presets/gpt2", "gpt2.toml", "GPT2", "", "none", "__init__"])
def test_only_exact_names_are_presets(name: str) -> None:
    with pytest.raises(UserError, match=f"^preset {re.escape(repr(name))}: unknown; "):
        presets.load(name)


# From a name on the command line to a recipe


@pytest.mark.parametrize("name", presets.names())
def test_a_preset_name_gives_a_recipe_with_a_fitting_task(name: str) -> None:
    recipe = recipes.resolve(name)
    assert recipe.model == presets.load(name).replace(preset=name)
    assert recipe.model.family in FAMILIES_OF_TASK[recipe.task]
    assert presets.expand(tomllib.loads(recipe.to_toml())) == recipe  # a stored recipe names its preset and holds


def test_each_family_has_a_task() -> None:
    tasks = {name: recipes.resolve(name).task for name in ("bert-base", "gpt2", "vaswani-base")}
    assert tasks == {"bert-base": "classify", "gpt2": "complete", "vaswani-base": "translate"}


def test_settings_change_a_preset() -> None:
    recipe = recipes.resolve("bert-tiny", ["model.layers=3", "train.dropout=0.25", "task=fill", "model.head=tokens"])
    assert recipe.model == presets.load("bert-tiny").replace(preset="bert-tiny", layers=3, head="tokens")
    assert (recipe.task, recipe.train.dropout) == ("fill", 0.25)


def test_a_file_lays_its_keys_over_its_preset(tmp_path: Path) -> None:
    source = written(tmp_path, 'task = "complete"\nseed = 5\n[model]\npreset = "gpt-nano"\nlayers = 2\ncontext = 64\n')
    recipe = recipes.resolve(source)
    assert recipe.model == presets.load("gpt-nano").replace(preset="gpt-nano", layers=2, context=64)
    assert (recipe.task, recipe.seed) == ("complete", 5)
    again = recipes.resolve(source, ["model.layers=7", "seed=6"])
    assert (again.model.layers, again.model.context, again.model.width, again.seed) == (7, 64, 48, 6)
    other = recipes.resolve(source, ["model.preset=gpt2"])
    assert (other.model.layers, other.model.context, other.model.width) == (2, 64, 768)


def test_a_file_without_a_preset_stands_alone(tmp_path: Path) -> None:
    assert recipes.resolve(written(tmp_path, "[model]\nlayers = 2\n")).model == ModelConfig(layers=2)
    assert recipes.resolve(written(tmp_path, '[model]\npreset = "none"\n')).model == ModelConfig()


@pytest.mark.parametrize(
    ("task", "preset"),
    [("classify", "small-encoder"), ("complete", "small-decoder"), ("translate", "small-translator")],
)
def test_a_file_that_says_nothing_about_its_model_has_a_small_preset(tmp_path: Path, task: str, preset: str) -> None:
    """One that can be exported. With `init` the model comes from there."""
    source = written(tmp_path, f'task = "{task}"\n')
    assert recipes.resolve(source).model == presets.load(preset).replace(preset=preset)
    assert recipes.resolve(source, ["init=bundled-gpt"]).model == ModelConfig()


def test_a_file_needs_no_toml_ending(tmp_path: Path) -> None:
    source = written(tmp_path, "[model]\nlayers = 2\n", name="recipe.txt")
    assert recipes.resolve(source).model.layers == 2


def test_a_source_that_is_nothing_names_the_nearest_preset() -> None:
    assert refused("gpt3") == f"gpt3: neither a recipe, a preset nor a TOML file; did you mean gpt2? known: {SOURCES}"
    assert refused("zzzz") == f"zzzz: neither a recipe, a preset nor a TOML file; known: {SOURCES}"
    assert refused("zzzz.toml") == "zzzz.toml: no such file; a recipe is a TOML file"


@pytest.mark.parametrize("source", ["x" * 5000, "x" * 5000 + ".toml", "x\0", "x\0.toml"])
def test_a_source_no_file_system_takes_is_refused_in_a_sentence(source: str) -> None:
    assert refused(source).startswith(source[:1])


def test_an_unknown_preset_in_a_recipe_names_the_nearest(tmp_path: Path) -> None:
    message = refused(written(tmp_path, '[model]\npreset = "bert-minni"\n'))
    assert message.endswith(f"preset 'bert-minni': unknown; did you mean bert-mini? known: {KNOWN}")
    assert refused("gpt2", "model.preset=gpt3").endswith(f"preset 'gpt3': unknown; did you mean gpt2? known: {KNOWN}")


def test_mistakes_name_the_source(tmp_path: Path) -> None:
    source = written(tmp_path, "[model]\nlayers = 0\n")
    assert refused(source) == f"{source}: model.layers = 0: must be at least 1 and at most 1,000"
    assert refused("gpt2", "model.layer=2").startswith("gpt2: model.layer: unknown key; did you mean layers? known: ")
    assert refused(written(tmp_path, "[model]\npreset = 3\n")) == f"{source}: model.preset = 3: must be text"
    assert refused(written(tmp_path, "model = 3\n")) == f"{source}: model = 3: must be a table of keys"


def test_a_preset_and_a_changed_key_must_still_fit() -> None:
    assert refused("gpt2", "model.heads=7").startswith(
        "gpt2: [model] heads = 7 does not divide width = 768; accepted: "
    )
    assert refused("gpt2", "task=fill") == "gpt2: task = 'fill' needs model.family = encoder; found 'decoder'"


# Too large for this machine

IMPOSSIBLE = """
import resource
from qkv.config.recipe import ModelConfig
from qkv.model import build_model
from qkv.schema import UserError

config = ModelConfig(vocabulary=1000, width=65536, layers=1000, heads=64)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    build_model(config)
except UserError as error:
    print(error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def test_a_model_too_large_for_this_machine_is_refused_before_allocation() -> None:
    """In a process of its own, whose peak memory nothing else has raised."""
    environment = {**os.environ, "PYTHONPATH": str(Path(qkv.__file__).parents[1])}
    command = [sys.executable, "-c", IMPOSSIBLE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    sentence, taken = done.stdout.splitlines()
    has = f"{memory_bytes() / 2**30:,.1f}"
    assert sentence == f"the weights of this model take 192,003.4 GiB; this machine has {has} GiB of memory"
    assert int(taken) < 512 * 2**20  # torch's own start-up and the layout; the weights would be 400,000 times this


def test_the_limit_is_the_memory_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    config = ModelConfig(vocabulary=11, width=8, heads=2, layers=1)
    needed = sum(weight.nbytes for weight in build_model(config).parameters())
    monkeypatch.setattr(build, "memory_bytes", lambda: needed)
    build_model(config)
    monkeypatch.setattr(build, "memory_bytes", lambda: needed - 1)
    with pytest.raises(UserError, match=r"^the weights of this model take 0\.0 GiB; this machine has 0\.0 GiB"):
        build_model(config)
