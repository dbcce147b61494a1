"""Proven here: a recipe is frozen, strict and explains itself.

Whatever a user writes is either taken exactly as written or refused in sentences that name the key, the value found
and what would be accepted; overrides cannot smuggle; a written recipe reads back equal; nothing derived goes stale;
the names a recipe may use are the names the model has; and none of it loads torch.
"""

from __future__ import annotations

import copy
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import tomli_w
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

import qkv
from qkv.config import recipe as config
from qkv.config.recipe import (
    FAMILIES_OF_TASK,
    HEADS_OF_FAMILY,
    DataConfig,
    DecodeConfig,
    ModelConfig,
    Recipe,
    RuntimeConfig,
    TokenizerConfig,
    TrainConfig,
)
from qkv.model.attention import SCALES, SCORES
from qkv.model.build import POSITIONS
from qkv.model.heads import POOLS
from qkv.model.layers import ACTIVATIONS, NORMS
from qkv.schema import LARGEST_FILE, Section, UserError, describe, key, nearest, override, read_toml
from qkv.tokenizer.train import KINDS

MODEL_KEYS = ", ".join(ModelConfig.model_fields)
RECIPE_KEYS = "task, seed, init, data, tokenizer, model, train, decode, runtime"
SECTIONS: list[type[Section]] = [
    Recipe,
    DataConfig,
    TokenizerConfig,
    ModelConfig,
    TrainConfig,
    DecodeConfig,
    RuntimeConfig,
]


def refused(table: dict[str, Any], where: str = "") -> str:
    """What is said to somebody who wrote this table."""
    with pytest.raises(UserError) as caught:
        Recipe.read(table, where)
    return str(caught.value)


def set_refused(*changes: str) -> str:
    """What is said to somebody who gave these settings, at whichever door they are stopped."""
    with pytest.raises(UserError) as caught:
        Recipe.read(override({"model": {"layers": 4}}, changes))
    return str(caught.value)


# Frozen, nested, strict


def test_a_section_cannot_change() -> None:
    recipe = Recipe()
    for section in (recipe, recipe.model, recipe.train, recipe.runtime):
        for name in type(section).model_fields:
            with pytest.raises(ValidationError, match="frozen"):
                setattr(section, name, getattr(section, name))
    assert recipe == Recipe()
    assert hash(recipe) == hash(Recipe())


def test_sections_nest_and_defaults_fill_the_rest() -> None:
    recipe = Recipe.read({"model": {"layers": 3}, "train": {"dropout": 0.25}})
    assert (recipe.model.layers, recipe.train.dropout) == (3, 0.25)
    assert recipe == Recipe().replace(model=ModelConfig(layers=3), train=TrainConfig(dropout=0.25))
    assert Recipe.read({}) == Recipe()


def test_replace_checks_again() -> None:
    with pytest.raises(UserError, match=re.escape("sed: unknown key; did you mean seed?")):
        Recipe().replace(sed=1)
    with pytest.raises(UserError, match=re.escape("layers = 0: must be at least 1 and at most 1,000")):
        ModelConfig().replace(layers=0)


@pytest.mark.parametrize(
    ("name", "value", "accepted"),
    [
        ("layers", "4", "a whole number, at least 1 and at most 1,000"),
        ("layers", True, "a whole number, at least 1 and at most 1,000"),
        ("layers", 4.0, "a whole number, at least 1 and at most 1,000"),
        ("layers", None, "a whole number, at least 1 and at most 1,000"),
        ("layers", [4], "a whole number, at least 1 and at most 1,000"),
        ("norm_eps", "1", "a number, more than 0.0 and at most 1.0"),
        ("norm_eps", True, "a number, more than 0.0 and at most 1.0"),
        ("norm_eps", float("nan"), "more than 0.0 and at most 1.0"),
        ("norm_eps", float("inf"), "more than 0.0 and at most 1.0"),
        ("norm_eps", -float("inf"), "more than 0.0 and at most 1.0"),
        ("bias", 1, "true or false"),
        ("bias", "true", "true or false"),
        ("preset", 3, "text"),
        ("norm", 3, "one of layer, rms, batch, none"),
        ("norm", True, "one of layer, rms, batch, none"),
    ],
)
def test_values_are_never_converted(name: str, value: object, accepted: str) -> None:
    assert refused({"model": {name: value}}) == f"model.{name} = {value!r}: must be {accepted}"


@pytest.mark.parametrize("value", [1, 0, 1.0])
def test_a_number_is_no_truth_value_in_final_norm_either(value: float) -> None:
    assert (
        refused({"model": {"final_norm": value}}) == f"model.final_norm = {value!r}: must be one of auto, true, false"
    )


class Unlimited(Section):
    """A number that no limit guards: limits refuse NaN and infinity too, and would hide that the section does not."""

    number: float = key(0.0, "Any number.")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_only_finite_numbers_are_numbers(value: float) -> None:
    with pytest.raises(UserError, match=f"^number = {value!r}: must be"):
        Unlimited.read({"number": value})


def test_a_whole_number_is_a_number() -> None:
    """The only conversion there is: TOML's 1 where 1.0 is meant."""
    epsilon = ModelConfig.read({"norm_eps": 1}).norm_eps
    assert (type(epsilon), epsilon) == (float, 1.0)


# Sentences


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        (
            {"sed": 1},
            f"sed: unknown key; did you mean seed? known: {RECIPE_KEYS}",
        ),
        ({"zzzz": 1}, f"zzzz: unknown key; known: {RECIPE_KEYS}"),
        ({"model": {"layer": 3}}, f"model.layer: unknown key; did you mean layers? known: {MODEL_KEYS}"),
        ({"runtime": {"thread": 2}}, "runtime.thread: unknown key; did you mean threads? known: threads"),
        ({"model": {"layers": -1}}, "model.layers = -1: must be at least 1 and at most 1,000"),
        ({"model": {"layers": 1_000_000}}, "model.layers = 1000000: must be at least 1 and at most 1,000"),
        ({"train": {"dropout": 1.0}}, "train.dropout = 1.0: must be at least 0.0 and below 1.0"),
        ({"seed": 2**63}, f"seed = {2**63}: must be at least 0 and below 9,223,372,036,854,775,808"),
        ({"seed": "seven"}, "seed = 'seven': must be a whole number, at least 0 and below 9,223,372,036,854,775,808"),
        ({"task": "fil"}, "task = 'fil': must be one of classify, regress, fill, complete, translate"),
        ({"model": {"norm": "lyer"}}, "model.norm = 'lyer': must be one of layer, rms, batch, none"),
        ({"model": {"final_norm": "yes"}}, "model.final_norm = 'yes': must be one of auto, true, false"),
        (
            {"model": {"heads": 3}},
            "[model] heads = 3 does not divide width = 256; accepted: 1, 2, 4, 8, 16, 32, 64, 128, 256; "
            "or give head_width",
        ),
        (
            {"model": {"width": 2, "heads": 4}},
            "[model] heads = 4 does not divide width = 2; accepted: 1, 2; or give head_width",
        ),
        ({"model": {"kv_heads": 3}}, "[model] kv_heads = 3 does not divide heads = 4; accepted: 1, 2, 4"),
        ({"model": {"kv_heads": 8}}, "[model] kv_heads = 8 does not divide heads = 4; accepted: 1, 2, 4"),
        (
            {"model": {"positions": "rotary", "width": 12}},
            "[model] positions = 'rotary' turns pairs of features: head_width must be even, it is 3",
        ),
        (
            {"model": {"positions": "t5", "reach": 16}},
            "[model] reach = 16 must be more than half of buckets = 32 for positions = 't5'",
        ),
        (
            {
                "task": "translate",
                "model": {"family": "encoder-decoder", "tied": "all", "vocabulary": 11, "target_vocabulary": 13},
            },
            "[model] tied = 'all' needs one vocabulary, but vocabulary = 11 and target_vocabulary = 13; "
            "accepted then: tied = 'output' or 'none'",
        ),
        (
            {"model": {"decoder_layers": 3}},
            "[model] decoder_layers = 3 is for family = encoder-decoder; family is 'encoder'",
        ),
        (
            {"model": {"target_vocabulary": 11}},
            "[model] target_vocabulary = 11 is for family = encoder-decoder; family is 'encoder'",
        ),
        (
            {"task": "complete", "model": {"family": "decoder", "head": "pretraining"}},
            "[model] head = 'pretraining' is not for family = 'decoder'; accepted: auto, none, tokens, classification, "
            "regression",
        ),
        (
            {"task": "translate", "model": {"family": "encoder-decoder", "head": "classification"}},
            "[model] head = 'classification' is not for family = 'encoder-decoder'; accepted: auto, none, tokens",
        ),
        (
            {"task": "translate", "model": {"family": "encoder"}},
            "task = 'translate' needs model.family = encoder-decoder; found 'encoder'",
        ),
        ({"train": {"lr": 1e-3}}, "train.lr: unknown key; did you mean train.learning_rate?"),
        ({"model": {"hidden_size": 64}}, "model.hidden_size: unknown key; did you mean model.width?"),
        (
            {"model": {"family": "encoder-decoder"}},
            "task = 'classify' needs model.family = encoder, decoder; found 'encoder-decoder'",
        ),
        ({"model": 3}, "model = 3: must be a table of keys"),
        ({"train": "fast"}, "train = 'fast': must be a table of keys"),
        ({"model": [{"layers": 3}]}, "model = [{'layers': 3}]: must be a table of keys"),
    ],
)
def test_a_refusal_is_this_sentence(table: dict[str, Any], sentence: str) -> None:
    assert refused(table) == sentence
    assert refused(table, where="my.toml") == f"my.toml: {sentence}"


@pytest.mark.parametrize(
    ("task", "family"), [("classify", "encoder"), ("complete", "decoder"), ("translate", "encoder-decoder")]
)
def test_a_recipe_without_a_family_has_that_of_its_task(task: str, family: str) -> None:
    assert Recipe.read({"task": task}).model.family == family
    assert Recipe.read({"task": task, "model": {"layers": 2}}).model.family == family


def test_suggested_keys_exist() -> None:
    known = {path for path, _, _ in describe(Recipe())}
    for section in (DataConfig, ModelConfig, TrainConfig):
        assert {new.partition(" ")[0] for new in section.suggested.values()} <= known
        assert not section.suggested.keys() & section.model_fields.keys()


def test_what_the_refusals_say_is_accepted() -> None:
    """The neighbours of the values refused above, on the other side of each limit."""
    Recipe.read({"model": {"layers": 1}})
    Recipe.read({"model": {"layers": 1000}})
    Recipe.read({"seed": 2**63 - 1})
    Recipe.read({"model": {"heads": 3, "head_width": 7}})
    Recipe.read({"model": {"kv_heads": 2}})
    Recipe.read({"model": {"positions": "rotary", "width": 8}})
    Recipe.read({"model": {"positions": "t5", "reach": 17}})
    both = {"family": "encoder-decoder", "vocabulary": 11}
    Recipe.read({"task": "translate", "model": {**both, "tied": "output", "target_vocabulary": 13}})
    Recipe.read({"task": "translate", "model": {**both, "tied": "all", "target_vocabulary": 11}})
    Recipe.read({"task": "translate", "model": {**both, "decoder_layers": 3}})


def test_several_mistakes_give_several_lines() -> None:
    wrong = {"model": {"layers": 0, "hed": 1, "norm": "x"}, "train": {"dropout": 1.0}, "sed": 1}
    assert refused(wrong, "my.toml").splitlines() == [
        "my.toml: model.layers = 0: must be at least 1 and at most 1,000",
        "my.toml: model.norm = 'x': must be one of layer, rms, batch, none",
        f"my.toml: model.hed: unknown key; did you mean head? known: {MODEL_KEYS}",
        "my.toml: train.dropout = 1.0: must be at least 0.0 and below 1.0",
        f"my.toml: sed: unknown key; did you mean seed? known: {RECIPE_KEYS}",
    ]


@pytest.mark.parametrize("value", ["x" * 100_000, 10**100, ["x"] * 100_000, {"x" * 1000: 1}])
def test_a_huge_value_is_shortened(value: object) -> None:
    shown = repr(value)[:57] + "..."
    assert (
        refused({"model": {"layers": value}}).replace("a whole number, ", "")
        == f"model.layers = {shown}: must be at least 1 and at most 1,000"
    )


@pytest.mark.parametrize(
    ("key", "value", "new"),
    [
        ("model.head", "words", 'head = "tokens"'),
        ("model.head", "classes", 'head = "classification"'),
        ("model.head", "grade", 'head = "regression", and task = "regress" in a recipe'),
        ("data.long", "cut", "data.truncation: head (was cut), head+tail (was ends) or windows"),
        ("data.long", "ends", "data.truncation: head (was cut), head+tail (was ends) or windows"),
        ("data.long", "windows", "data.truncation: head (was cut), head+tail (was ends) or windows"),
        ("data.across", True, "data.pack_documents"),
        ("train.hide_tokens", 0.5, "train.token_dropout"),
        ("train.mask_words", 0.5, "train.mask_rate"),
        ("train.table_decay", 0.5, "train.embedding_decay"),
    ],
)
def test_a_renamed_key_or_value_is_refused_with_the_new_one(key: str, value: object, new: str, tmp_path: Path) -> None:
    table, _, name = key.partition(".")
    file = tmp_path / "my.toml"
    file.write_text(f"[{table}]\n" + tomli_w.dumps({name: value}))
    sentence = f"{key} = {value!r}: was renamed; write {new}"
    assert refused(read_toml(file), where="my.toml") == f"my.toml: {sentence}"
    written = value if isinstance(value, str) else str(value).lower()
    assert set_refused(f"{key}={written}") == sentence


def test_every_renamed_key_and_value_is_tried_and_what_replaces_it_is_accepted() -> None:
    """The test above names each former key and value of the tables `renamed`; here, each new one is read."""
    former = {f"{path}.{name}" for path, cls in _sections(Recipe()) for name in cls.renamed}
    assert former == {
        "model.head = words", "model.head = classes", "model.head = grade", "data.long", "data.across",
        "train.hide_tokens", "train.mask_words", "train.table_decay",
    }  # fmt: skip
    for head in ("tokens", "classification"):
        assert Recipe.read({"model": {"head": head}}).model.head == head
    assert Recipe.read({"task": "regress", "model": {"head": "regression"}}).model.head == "regression"
    for truncation in ("head", "head+tail", "windows"):
        assert Recipe.read({"data": {"truncation": truncation}}).data.truncation == truncation
    assert Recipe.read({"data": {"pack_documents": True}}).data.pack_documents
    for name in ("token_dropout", "mask_rate", "embedding_decay"):
        assert getattr(Recipe.read({"train": {name: 0.5}}).train, name) == 0.5


def test_a_value_cannot_break_the_line() -> None:
    assert "\n" not in refused({"task": "fill\nseed = 1: must be 2"})


@pytest.mark.parametrize("name", ["a\nseed = 1: must be 2", "a\x1b[31m", "x" * 100_000])
def test_a_key_cannot_break_the_line_colour_it_or_fill_the_screen(name: str) -> None:
    """A TOML key in quotes can hold anything."""
    sentence = refused({name: 1})
    assert sentence.isprintable()
    assert len(sentence) < 300


def test_nearest_names_one_and_lists_all() -> None:
    assert nearest("gpt3", ["bert", "gpt2"]) == "did you mean gpt2? known: bert, gpt2"
    assert nearest("t5", ["bert", "gpt2"]) == "known: bert, gpt2"


# Dotted settings


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("seed=1", {"seed": 1}),
        ("seed=-1", {"seed": -1}),
        ("seed=1_000", {"seed": 1000}),
        ("train.dropout=0.25", {"train": {"dropout": 0.25}}),
        ("train.dropout=1e-3", {"train": {"dropout": 1e-3}}),
        ("model.bias=false", {"model": {"layers": 4, "bias": False}}),
        ("model.layers=8", {"model": {"layers": 8}}),
        (" model . layers = 8 ", {"model": {"layers": 8}}),
        ("task=fill", {"task": "fill"}),
        ("task=encoder-decoder", {"task": "encoder-decoder"}),
        ("task='fill'", {"task": "fill"}),
        ('task="8"', {"task": "8"}),
        ("task=a b", {"task": "a b"}),
        ("task=a=b", {"task": "a=b"}),
        ("task=", {"task": ""}),
        ('task="a\\nb"', {"task": "a\nb"}),
        ("task=a\nb", {"task": "a\nb"}),
        ("a.b.c=1", {"a": {"b": {"c": 1}}}),
    ],
)
def test_a_setting_is_read_as_toml_and_needs_no_quotes(setting: str, expected: dict[str, Any]) -> None:
    result = override({"model": {"layers": 4}}, [setting])
    assert result == {"model": {"layers": 4}} | expected
    for path, value in _leaves(expected):
        assert type(_at(result, path)) is type(value)


@pytest.mark.parametrize(
    "text",
    [
        "1\nx=2",
        "1\r\nx=2",
        "1\n[x]\ny=2",
        "1\n[model]\nlayers=2",
        "1\n[value.x]\ny=2",
        "{}\nvalue.x=2",
        "{x=1}\n[value.y]\nz=2",
        "[]\n[[value]]\nx=2",
        "'a'\nseed=2",
    ],
)
def test_a_setting_cannot_smuggle_a_second_key(text: str) -> None:
    assert override({"model": {"layers": 4}}, [f"seed={text}"]) == {"model": {"layers": 4}, "seed": text}
    assert set_refused(f"seed={text}").startswith(f"seed = {text!r}: must be a whole number")


@pytest.mark.parametrize("setting", ["seed", "", "=1", "model..layers=1", ".seed=1", "seed.=1", " =1", "a. .b=1"])
def test_a_setting_without_a_key_or_a_value_is_refused(setting: str) -> None:
    assert set_refused(setting) == f"--set {setting}: must have the form key=value, for example model.layers=8"


def test_a_setting_cannot_pass_through_a_single_value() -> None:
    assert (
        set_refused("model.layers.x=1") == "--set model.layers.x=1: model.layers is a single value, not a table of keys"
    )
    assert set_refused("seed=1", "seed.x.y=2") == "--set seed.x.y=2: seed is a single value, not a table of keys"


def test_settings_apply_in_order_and_leave_the_original_alone() -> None:
    table = {"model": {"layers": 4, "deep": {"er": [1]}}, "seed": 1}
    before = copy.deepcopy(table)
    result = override(table, ["model.layers=8", "model.deep.new=3", "seed=2", "seed=3", "train.dropout=0.5"])
    assert result == {
        "model": {"layers": 8, "deep": {"er": [1], "new": 3}},
        "seed": 3,
        "train": {"dropout": 0.5},
    }
    assert table == before


def _leaves(table: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*path, name))
        else:
            yield (*path, name), value


def _at(table: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        table = table[name]
    return table


# Too much of anything is still a sentence, never a traceback


@pytest.mark.parametrize("number", ["1" * 5000, "-" + "1" * 5000, "0x" + "f" * 5000], ids=["long", "negative", "hex"])
def test_a_number_of_5000_digits_is_refused(number: str, tmp_path: Path) -> None:
    """Python refuses to read or print integers of more than 4,300 digits, with a plain ValueError."""
    assert len(set_refused(f"seed={number}")) < 300
    file = tmp_path / "long.toml"
    file.write_text(f"seed = {number}")
    with pytest.raises(UserError) as caught:
        Recipe.read(read_toml(file))
    assert len(str(caught.value)) < 300 + len(str(file))


def test_a_key_of_3000_parts_is_refused(tmp_path: Path) -> None:
    path = ".".join(["a"] * 3000)
    file = tmp_path / "deep.toml"
    file.write_text(f"{path} = 1")
    with pytest.raises(UserError):
        Recipe.read(override(read_toml(file), []))
    with pytest.raises(UserError):
        Recipe.read(override({}, [f"{path}=1"]))


# TOML out and in


def _values(cls: type[Section], name: str) -> st.SearchStrategy[Any]:
    """All values one key accepts by itself."""
    field = cls.model_fields[name]
    kind: Any = field.annotation
    limits = {word: getattr(m, word) for m in field.metadata for word in ("ge", "gt", "le", "lt") if hasattr(m, word)}
    if get_args(kind):
        return st.sampled_from(get_args(kind))
    if kind is bool:
        return st.booleans()
    if kind is str:
        return st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    if kind is int:
        return st.integers(limits["ge"], limits["le"] if "le" in limits else limits["lt"] - 1)
    assert kind is float, f"no strategy for {kind}"
    low, high = limits.get("ge", limits.get("gt")), limits.get("le", limits.get("lt"))
    return st.floats(low, high, exclude_min="gt" in limits, exclude_max="lt" in limits)


def _tables(cls: type[Section]) -> st.SearchStrategy[dict[str, Any]]:
    """Some keys of a section, the rest left out."""
    names = [name for name in cls.model_fields if not isinstance(getattr(cls(), name), Section)]
    return st.fixed_dictionaries({}, optional={name: _values(cls, name) for name in names})


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    """Random valid recipes: random keys, moved into agreement where keys depend on one another, then read."""
    model = draw(_tables(ModelConfig))
    family = model.setdefault("family", "encoder")
    if family != "encoder-decoder":
        model.pop("decoder_layers", None)
        model.pop("target_vocabulary", None)
    if draw(st.booleans()):  # a width that heads divide; otherwise a head_width stands alone
        model["heads"] = draw(st.sampled_from([1, 2, 3, 4, 8, 12, 64]))
        model["width"] = model["heads"] * draw(st.integers(1, 1024))
        model["kv_heads"] = draw(st.sampled_from([0, 1, model["heads"]]))
    else:
        model["head_width"] = draw(st.integers(1, 32_768)) * 2
        model["kv_heads"] = 0
    if "head" in model:
        model["head"] = draw(st.sampled_from(["auto", *HEADS_OF_FAMILY[family]]))
    task = draw(st.sampled_from([name for name, families in FAMILIES_OF_TASK.items() if family in families]))
    table = {**draw(_tables(Recipe)), "task": task, "model": model}
    table |= {"train": draw(_tables(TrainConfig)), "runtime": draw(_tables(RuntimeConfig))}
    try:
        return Recipe.read(table)
    except UserError:
        assume(False)
        raise


@settings(max_examples=150, deadline=None)
@given(recipes())
def test_a_written_recipe_reads_back_equal(recipe: Recipe) -> None:
    again = Recipe.read(tomllib.loads(recipe.to_toml()))
    assert again == recipe
    assert again.to_toml() == recipe.to_toml()
    model = tomllib.loads(recipe.model.to_toml())
    assert ModelConfig.read(model) == recipe.model


@settings(max_examples=150, deadline=None)
@given(recipes())
def test_resolve_leaves_nothing_to_derive(recipe: Recipe) -> None:
    written, full = recipe.model, recipe.model.resolve()
    assert full.resolve() == full
    assert ModelConfig.read(full.model_dump()) == full  # what it fills in is valid
    both = full.family == "encoder-decoder"
    assert min(full.head_width, full.kv_heads, full.feedforward) > 0
    assert (full.decoder_layers > 0) == both
    assert (full.target_vocabulary > 0) == (both and (written.vocabulary > 0 or written.target_vocabulary > 0))
    assert full.reach > 0 or full.positions not in ("relative", "t5")
    assert "auto" not in (full.final_norm, full.head, full.pool, full.pooler)
    derivable = ("target_vocabulary", "head_width", "kv_heads", "decoder_layers", "feedforward", "reach")
    for name in ModelConfig.model_fields:  # what was written stays as it was written
        left_open = getattr(written, name) in (0, "auto") and name in (
            *derivable,
            "final_norm",
            "head",
            "pool",
            "pooler",
        )
        assert left_open or getattr(full, name) == getattr(written, name), name


def test_resolve_by_hand() -> None:
    encoder = ModelConfig(width=96, heads=6).resolve()
    assert (encoder.head_width, encoder.kv_heads, encoder.feedforward) == (16, 6, 384)
    assert (encoder.final_norm, encoder.head, encoder.pool) == (False, "none", "first")
    assert (encoder.decoder_layers, encoder.target_vocabulary, encoder.reach) == (0, 0, 0)
    decoder = ModelConfig(family="decoder", norm_place="pre", positions="relative").resolve()
    assert (decoder.final_norm, decoder.head, decoder.pool, decoder.reach) == (True, "tokens", "last", 16)
    both = ModelConfig(family="encoder-decoder", vocabulary=11, layers=3, positions="t5", final_norm=True).resolve()
    assert (both.decoder_layers, both.target_vocabulary, both.reach) == (3, 11, 128)
    assert (both.final_norm, both.head, both.pool) == (True, "tokens", "first")


def test_a_later_change_never_meets_a_stale_derived_key() -> None:
    model = ModelConfig.read({"width": 96, "heads": 6, "family": "encoder-decoder", "vocabulary": 11})
    assert model.head_width == model.kv_heads == model.feedforward == model.decoder_layers == 0
    model.resolve()
    changed = model.replace(heads=8, layers=5, vocabulary=13, width=64, norm_place="pre").resolve()
    assert (changed.head_width, changed.kv_heads, changed.feedforward) == (8, 8, 256)
    assert (changed.decoder_layers, changed.target_vocabulary, changed.final_norm) == (5, 13, True)
    assert model.replace(family="decoder").resolve().pool == "last"
    recipe = Recipe.read(tomllib.loads(Recipe(model=ModelConfig(heads=4)).to_toml()))
    assert recipe.model.replace(heads=8).resolve().head_width == 32


def test_every_key_of_a_written_recipe_stands_below_its_sentence() -> None:
    lines = Recipe().to_toml().splitlines()
    sections, sentences = dict(_sections(Recipe())), {path: sentence for path, _, sentence in describe(Recipe())}
    table, seen = "", []
    for above, line in zip(["", *lines], lines, strict=False):
        if line.startswith("["):
            table, _, comment = line.removeprefix("[").partition("]  # ")
            path = table
        elif line and not line.startswith("#"):
            comment = above.removeprefix("# ")
            path = f"{table}.{line.partition(' = ')[0]}".strip(".")
        else:
            continue
        where, _, name = path.rpartition(".")
        assert comment == sentences[path]
        assert comment.startswith(str(sections[where].model_fields[name].description))
        seen.append(path)
    assert seen == list(sentences)


def _sections(section: Section, path: str = "") -> Iterator[tuple[str, type[Section]]]:
    yield path, type(section)
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, Section):
            yield from _sections(value, f"{path}.{name}".strip("."))


def test_describe_gives_unit_and_limits() -> None:
    sentences = {path: sentence for path, _, sentence in describe(Recipe())}
    assert sentences["model.heads"] == "Attention heads H in each layer. [heads; at least 1 and at most 1,024]"
    assert sentences["model.norm"] == "Normalisation. [one of layer, rms, batch, none]"
    assert sentences["model.output_bias"] == "A bias for each token of the output layer."
    assert list(sentences)[:4] == ["task", "seed", "init", "data"]  # tables last: TOML has no way back to the top


# Every key is declared in full


def test_these_are_all_sections() -> None:
    assert [cls for _, cls in _sections(Recipe())] == SECTIONS


@pytest.mark.parametrize("cls", SECTIONS)
def test_every_key_has_a_default_a_sentence_and_a_unit(cls: type[Section]) -> None:
    cls()
    for name, field in cls.model_fields.items():
        assert not field.is_required(), name
        assert field.description, name
        assert field.description.endswith("."), name
        assert field.description.strip() == field.description, name
        assert field.description.isprintable(), name
        limited = any(hasattr(m, word) for m in field.metadata for word in ("ge", "gt", "le", "lt"))
        assert limited == (field.annotation in (int, float)), f"{name}: numbers have limits, other values have none"
        if field.annotation is int:
            unit = field.json_schema_extra["unit"] if isinstance(field.json_schema_extra, dict) else ""
            assert bool(unit) == (name != "seed"), name


@pytest.mark.parametrize("cls", SECTIONS)
def test_defaults_are_valid(cls: type[Section]) -> None:
    """pydantic does not check defaults by itself."""
    assert cls.read(cls().model_dump()) == cls()


# Files


def _file_refused(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        read_toml(path)
    return str(caught.value)


def test_a_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_bytes("seed = 3\r\n[model]\r\npreset = 'é'\r\n".encode())
    assert read_toml(file) == {"seed": 3, "model": {"preset": "é"}}


def test_a_file_that_cannot_be_read_is_refused_in_one_sentence(tmp_path: Path) -> None:
    missing, latin, broken = tmp_path / "missing.toml", tmp_path / "latin.toml", tmp_path / "broken.toml"
    assert _file_refused(missing) == f"{missing}: no such file; a recipe is a TOML file"
    assert _file_refused(tmp_path) == f"{tmp_path}: cannot be read: Is a directory"
    latin.write_bytes(b"# caf\xe9\n")
    assert _file_refused(latin) == f"{latin}: not UTF-8 text (byte 5); a recipe is a TOML file in UTF-8"
    broken.write_text("seed = 1\nseed: 2\n")
    assert (
        _file_refused(broken)
        == f"{broken}: not valid TOML: Expected '=' after a key in a key/value pair (at line 2, column 5)"
    )
    broken.write_text("a = " + "[" * 5000)
    assert _file_refused(broken).startswith(f"{broken}: not valid TOML: maximum recursion depth exceeded")


def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "large.toml"
    file.write_bytes(b"#" * LARGEST_FILE)
    assert read_toml(file) == {}
    file.write_bytes(b"#" * (LARGEST_FILE + 1))
    monkeypatch.setattr(Path, "read_text", None)
    assert _file_refused(file) == f"{file}: larger than 1,000,000 bytes; a recipe is a short TOML file"


# Names


@pytest.mark.parametrize(
    ("choice", "table"),
    [
        (config.Positions, POSITIONS),
        (config.Score, SCORES),
        (config.Scale, SCALES),
        (config.Norm, NORMS),
        (config.Activation, ACTIVATIONS),
    ],
)
def test_the_names_of_parts_are_the_names_of_the_model(choice: Any, table: dict[str, Any]) -> None:
    assert list(get_args(choice)) == list(table)


def test_the_names_of_pools_and_poolers() -> None:
    assert set(get_args(config.Pool)) - {"auto"} == set(POOLS)
    assert set(get_args(config.Pooler)) - {"auto", "none"} <= set(ACTIVATIONS)


def test_the_tables_of_families_know_every_name() -> None:
    assert set(FAMILIES_OF_TASK) == set(config.KIND_OF_TASK) == set(get_args(config.TaskName))
    assert set(get_args(config.TokenizerKind)) - {"auto"} == set(KINDS)
    assert set(HEADS_OF_FAMILY) == set(get_args(config.Family))
    assert {head for heads in HEADS_OF_FAMILY.values() for head in heads} | {"auto"} == set(get_args(config.Head))
    assert {family for families in FAMILIES_OF_TASK.values() for family in families} == set(get_args(config.Family))


@pytest.mark.parametrize(
    "module", ["qkv", "qkv.schema", "qkv.config.recipe", "qkv.config.presets", "qkv.streams", "qkv.model"]
)
def test_importing_does_not_load_torch(module: str) -> None:
    code = f"import sys, {module}; print(*sorted(name for name in ('torch', 'transformers') if name in sys.modules))"
    environment = {**os.environ, "PYTHONPATH": str(Path(qkv.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
