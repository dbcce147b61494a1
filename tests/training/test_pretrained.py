"""Fine-tuning of a pre-trained model: what is taken, what is new, what does not fit. And regression."""

from __future__ import annotations

import csv
import hashlib
import json
import random
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file

import qkv
from qkv.bundled import folder as bundled_folder
from qkv.config.presets import expand
from qkv.config.recipe import Recipe
from qkv.run.folder import Run
from qkv.schema import UserError
from qkv.tasks.fill import MaskedDataset
from qkv.tasks.texts import TextDataset
from qkv.training import trainer as trainer_module
from qkv.training.loop import batches_of, validate
from qkv.training.model_card import markdown
from qkv.training.model_files import trained_files
from qkv.training.trainer import Trainer, open_trainer
from qkv.verify import repair
from tests.support.fork_server import fork_server
from tests.support.small_folders import WORDS, make_folder

transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()

MODEL = {
    "context": 32, "width": 16, "heads": 2, "layers": 2, "feedforward": 32, "positions": "rotary",
    "embedding_norm": True, "output_bias": True, "pooler": "gelu",
}  # fmt: skip
TRAIN = {"steps": 2, "batch_tokens": 128, "learning_rate": 5e-3, "warmup": 0, "dropout": 0.0}


def write_table(path: Path, rows: list[list[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)


def texts(count: int, seed: int) -> list[str]:
    chance = random.Random(seed)
    return [" ".join(chance.choices(WORDS, k=chance.randint(3, 9))) for _ in range(count)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with documents, tables, a small BERT, and a run that was pre-trained a little: `pre`."""
    folder, lines = tmp_path_factory.mktemp("start"), texts(400, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QKV_CACHE", str(folder / "cache"))
        (folder / "docs.txt").write_text(
            "\n\n".join(f"{a}. {b}. {c}." for a, b, c in zip(*[iter(lines)] * 3, strict=False))
        )
        (folder / "more.txt").write_text(
            "\n\n".join(f"{a}. {b}." for a, b in zip(*[iter(texts(99, 2))] * 2, strict=False))
        )
        said = [["bad", "good", "neither"][text.count("good") % 3] for text in lines[:120]]
        write_table(folder / "rows.csv", [["text", "label"], *zip(lines[:120], said, strict=True)])  # type: ignore[list-item]
        pairs = [[a, b, str(n % 3)] for n, (a, b) in enumerate(zip(lines[:100], lines[100:200], strict=True))]
        write_table(folder / "pairs.csv", [["text", "second", "label"], *pairs])
        make_folder(folder / "bert", "fill")
        qkv.train(pretraining(folder), folder / "pre")
        yield folder


def pretraining(place: Path, corpus: str = "docs.txt", **changes: Any) -> Recipe:
    table = {"task": "fill", "data": {"corpus": str(place / corpus), "length": 24}, "tokenizer": {"vocab_size": 100}}
    return Recipe.read(merged({**table, "model": MODEL, "train": TRAIN, "runtime": {"threads": 1}}, changes))


def tuning(place: Path, corpus: str = "rows.csv", init: str = "pre", **changes: Any) -> Recipe:
    table = {"init": str(place / init), "data": {"corpus": str(place / corpus), "length": 24}, "train": TRAIN}
    return Recipe.read(merged({**table, "runtime": {"threads": 1}}, changes))


def merged(table: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    return {**table, **{k: {**table.get(k, {}), **v} if isinstance(v, dict) else v for k, v in changes.items()}}


def begin(recipe: Recipe, path: Path) -> Trainer:
    """A training that is about to make its first step."""
    with open_trainer(recipe, path) as trainer:
        return trainer


def state(run: Path | str) -> dict[str, torch.Tensor]:
    return qkv.load(run).model.state_dict()


# --- what is taken


def test_all_but_the_head_is_taken_to_the_bit(place: Path, tmp_path: Path) -> None:
    trainer, learnt = begin(tuning(place), tmp_path / "run"), state(place / "pre")
    own = trainer.state.model.state_dict()
    assert trainer.recipe.model.classes == 3
    new = {name for name in own if name not in learnt or not torch.equal(own[name], learnt[name])}
    assert new == {"text.output.weight", "text.output.bias"}
    assert trainer.notes[0] == "newly initialised: text.output.weight, text.output.bias"
    assert trainer.notes[1].startswith("not used from pre: words.")
    assert (tmp_path / "run" / "tokenizer.json").read_bytes() == (place / "pre" / "tokenizer.json").read_bytes()
    assert not any("[tokenizer]" in note for note in trainer.notes)
    other = begin(tuning(place, tokenizer={"vocab_size": 50}), tmp_path / "other")
    assert f"the tokenizer is that of {place / 'pre'}; [tokenizer] is ignored" in other.notes
    pooled = begin(tuning(place, model={"pooler": "relu"}), tmp_path / "pooled")
    assert "text.dense.weight" in pooled.notes[0]


def test_a_damaged_tokenizer_is_repaired_from_the_pretrained_model(place: Path, tmp_path: Path) -> None:
    """Of the run itself it cannot be trusted: a repair would make the damage valid."""
    run, file = tmp_path / "run", tmp_path / "run" / "tokenizer.json"
    qkv.train(tuning(place), run)
    sound = file.read_bytes()
    table = json.loads(sound)
    vocabulary = table["model"]["vocab"]
    first, second = sorted(vocabulary)[-2:]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    for damaged in ([file], [file, run / "MANIFEST.json"]):
        file.write_text(json.dumps(table))
        for other in damaged[1:]:
            other.write_text("{}")
        repair(run)
        assert file.read_bytes() == sound
        assert not Run(run).problems()
    moved = begin(tuning(place), tmp_path / "moved").run.path
    file = moved / "tokenizer.json"
    file.write_text(json.dumps(table))
    with pytest.raises(UserError, match="no sound checkpoint"):
        repair(moved)


def test_the_next_sentence_head_is_no_head_for_two_labels(place: Path, tmp_path: Path) -> None:
    """It has the same shape, but it predicts whether a sentence is the next."""
    rows = [[text, "yes" if "good" in text else "no"] for text in texts(60, 4)]
    write_table(tmp_path / "two.csv", [["text", "label"], *rows])
    trainer = begin(tuning(tmp_path, "two.csv", str(place / "pre")), tmp_path / "run")
    assert trainer.notes[0] == "newly initialised: text.output.weight, text.output.bias"


def test_the_output_layer_of_the_same_labels_is_taken_in_their_order(place: Path, tmp_path: Path) -> None:
    """It predicts what it did: the temperature that is folded into it stays, and rows move with their labels."""
    first = tuning(place, train={"steps": 20, "temperature": 1.5}, data={"validation": "none"})
    learnt = qkv.train(first, tmp_path / "first")
    assert Run(tmp_path / "first").temperature() == 1.5
    names = {"label_names": "neither=neither, good=good, bad=bad"}  # the order of the names is that of the labels
    trainer = begin(tuning(place, init=str(tmp_path / "first"), data=names), tmp_path / "run")
    assert trainer.notes[0] == f"output layer taken from {tmp_path / 'first'}"
    assert trainer.data.prepared.labels == ("neither", "good", "bad") == learnt.labels[::-1]
    before, now = learnt.model.state_dict(), trainer.state.model.state_dict()
    assert torch.equal(now["text.output.weight"], before["text.output.weight"].flip(0))
    assert torch.equal(now["text.output.bias"], before["text.output.bias"].flip(0))
    assert all(torch.equal(now[name], before[name]) for name in now if not name.startswith("text.output."))


def test_the_output_layer_is_new_for_other_labels_and_behind_another_pooler(place: Path, tmp_path: Path) -> None:
    qkv.train(tuning(place), tmp_path / "first")
    init = str(tmp_path / "first")
    renamed = tuning(place, init=init, data={"label_names": "bad=poor"})
    for number, recipe in enumerate((renamed, tuning(place, init=init, model={"pooler": "relu"}))):
        notes = begin(recipe, tmp_path / f"run{number}").notes
        assert not any(note.startswith("output layer") for note in notes)
        assert "text.output.weight, text.output.bias" in notes[0]


def test_a_hugging_face_folder_is_fine_tuned(place: Path, tmp_path: Path) -> None:
    trainer, learnt = (
        begin(tuning(place, init="bert", model={"pooler": "tanh"}), tmp_path / "run"),
        state(place / "bert"),
    )
    own = trainer.state.model.state_dict()
    body = [name for name in own if not name.startswith("text.")]
    assert all(torch.equal(own[name], learnt[name]) for name in body)
    assert "embedding.table_VD" in body
    model = qkv.train(tuning(place, init="bert", model={"pooler": "tanh"}), tmp_path / "run")
    assert Run(tmp_path / "run").architecture() == "BertForSequenceClassification"
    assert model.predict(["the film was good"])[0].label in ("bad", "good", "neither")


def test_pre_training_continues_on_other_text(place: Path, tmp_path: Path) -> None:
    recipe = pretraining(place, "more.txt", init=str(place / "pre"), model={"vocabulary": 0})
    trainer, learnt = begin(recipe, tmp_path / "run"), state(place / "pre")
    own = trainer.state.model.state_dict()
    assert own.keys() == learnt.keys()
    assert all(torch.equal(own[name], learnt[name]) for name in own)
    assert not any(note.startswith("newly") for note in trainer.notes)


def test_pairs_with_and_without_segments(place: Path, tmp_path: Path) -> None:
    data = {"pair": "second"}
    trainer = begin(tuning(place, "pairs.csv", data=data), tmp_path / "run")
    assert batches_of(trainer.state, 0)[0].segments_BL is not None
    make_folder(tmp_path / "distil", "fill", segments=0)
    recipe = tuning(place, "pairs.csv", str(tmp_path / "distil"), data=data, model={"pooler": "relu"})
    model = qkv.train(recipe, tmp_path / "without")
    assert model.config.segments == 0
    assert Run(tmp_path / "without").architecture() == "DistilBertForSequenceClassification"
    assert model.predict([("the film", "was good")])[0].label in ("0", "1", "2")
    make_folder(tmp_path / "single", "fill", segments=1)
    one = qkv.train(tuning(place, "pairs.csv", str(tmp_path / "single"), data=data), tmp_path / "one")
    assert one.config.segments == 1
    assert one.predict([("the film", "was good")])[0].label in ("0", "1", "2")
    documents = Recipe.read(
        {**recipe.model_dump(), "task": "fill", "data": {"corpus": str(place / "docs.txt"), "length": 24}}
    )
    assert qkv.train(documents, tmp_path / "fill").predict([("the film", "was good")])[0].label in ("next", "not next")


# --- decoders and encoder-decoders: the family comes from `init`


def test_a_decoder_is_fine_tuned_for_each_of_its_tasks(place: Path, tmp_path: Path) -> None:
    init, tables = "bundled-gpt", {"classify": {}, "regress": {"label": "number"}, "complete": {}}
    write_table(tmp_path / "numbers.csv", [["text", "number"], *[[text, len(text)] for text in texts(60, 5)]])
    files = {"classify": place / "rows.csv", "regress": tmp_path / "numbers.csv", "complete": place / "docs.txt"}
    learnt = state(init)
    for task, data in tables.items():
        table = {"task": task, "init": init, "data": {"corpus": str(files[task]), "length": 24, **data}, "train": TRAIN}
        trainer = begin(Recipe.read({**table, "runtime": {"threads": 1}}), tmp_path / task)
        own = trainer.state.model.state_dict()
        assert trainer.recipe.model.family == "decoder"
        assert all(torch.equal(own[name], learnt[name]) for name in own if name != "text.output.weight")
        assert ("text.output.weight" in own) == (task != "complete")
        assert not any("export" in note for note in trainer.notes)


def test_a_translator_is_fine_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its weights and tokenizer are taken to the bit, and it can resume."""
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))
    numbers = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "many", "no"]
    pairs = [[f"I have {n} {thing}.", f"J'ai {n} {thing}."] for n in numbers for thing in ("dogs", "cats", "books")]
    write_table(tmp_path / "pairs.csv", [["text", "target"], *pairs])
    table = {
        "task": "translate",
        "init": "bundled-en-fr",
        "data": {"corpus": str(tmp_path / "pairs.csv"), "length": 32},
    }
    recipe = Recipe.read({**table, "train": {**TRAIN, "steps": 4, "save_every": 2}, "runtime": {"threads": 1}})
    trainer, learnt = begin(recipe, tmp_path / "begun"), state("bundled-en-fr")
    own = trainer.state.model.state_dict()
    assert own.keys() == learnt.keys()
    assert all(torch.equal(own[name], learnt[name]) for name in own)
    stop_after(2, recipe, tmp_path / "run")
    tuned = qkv.train(recipe, tmp_path / "run")
    assert tuned.generates
    assert Run(tmp_path / "run").architecture() == "MarianMTModel"
    bundled = bundled_folder("bundled-en-fr") / "tokenizer.json"
    assert json.loads((tmp_path / "run" / "tokenizer.json").read_text()) == json.loads(bundled.read_text())


def test_both_tokenizers_of_a_translator_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))
    for name, word in (("first", "acht"), ("second", "neun")):
        pairs = [[f"{a} {b} {name}", f"{b.upper()} {a.upper()} {word}"] for a in WORDS[:6] for b in WORDS[:6]]
        write_table(tmp_path / f"{name}.csv", [["text", "target"], *pairs])
    parts = {"family": "encoder-decoder", "width": 16, "heads": 2, "layers": 1, "feedforward": 32, "tied": "output"}
    table: dict[str, Any] = {"task": "translate", "data": {"corpus": str(tmp_path / "first.csv"), "length": 24}}
    table |= {"model": parts, "train": {**TRAIN, "save_every": 1}, "runtime": {"threads": 1}}
    tokenizer = {"kind": "wordpiece", "vocab_size": 80, "shared": False}
    qkv.train(Recipe.read({**table, "tokenizer": tokenizer}), tmp_path / "run")
    del table["model"]
    data = {"corpus": str(tmp_path / "second.csv"), "length": 24}
    recipe = Recipe.read({**table, "init": str(tmp_path / "run"), "data": data})
    stop_after(1, recipe, tmp_path / "on")
    qkv.train(recipe, tmp_path / "on")  # resumes, with the tokenizers in its own folder
    for name in ("tokenizer.json", "target_tokenizer.json"):
        assert (tmp_path / "on" / name).read_bytes() == (tmp_path / "run" / name).read_bytes()
    target = json.loads((tmp_path / "on" / "target_tokenizer.json").read_text())
    assert target != json.loads((tmp_path / "on" / "tokenizer.json").read_text())
    more_tokens(tmp_path / "run", "target_tokenizer.json")
    for name in ("MANIFEST.json", "recipe.toml"):
        (tmp_path / "run" / name).unlink()
    with pytest.raises(UserError, match=r"target_tokenizer.json has \d+ tokens, the embedding table \d+ rows"):
        qkv.train(recipe, tmp_path / "refused")


def test_the_same_recipe_goes_on_from_its_own_run(place: Path, tmp_path: Path) -> None:
    """Also where its model is a preset: the sizes of the vocabulary are those of the run, not of the preset."""
    table = {"data": {"corpus": str(place / "rows.csv"), "length": 24}, "train": TRAIN, "runtime": {"threads": 1}}
    model = {"preset": "small-encoder", "width": 16, "heads": 2, "layers": 1}
    qkv.train(expand({**table, "model": model}), tmp_path / "run")
    trainer = begin(expand({**table, "model": model, "init": str(tmp_path / "run")}), tmp_path / "on")
    assert trainer.notes[0] == f"output layer taken from {tmp_path / 'run'}"


# --- what a user should know before training


def test_a_script_that_the_tokenizer_does_not_know_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))
    known, other = "a film that I liked", "этот фильм мне понравился"
    for name, text in (("russian", other), ("english", known)):
        rows = [[f"{text} {number}", "good" if number % 2 else "bad"] for number in range(60)]
        write_table(tmp_path / f"{name}.csv", [["text", "label"], *rows])
    notes = {
        name: begin(tuning(tmp_path, f"{name}.csv").replace(init="bundled-encoder"), tmp_path / name).notes
        for name in ("russian", "english")
    }
    told = [note for note in notes["russian"] if "unknown to the tokenizer" in note]
    assert len(told) == 1
    share = int(told[0].partition("%")[0])
    assert 30 < share < 100
    assert told[0] == (
        f"{share}% of the tokens are unknown to the tokenizer of bundled-encoder (such as 'этот'); train from scratch "
        "(remove init) or use another model"
    )
    assert not any("unknown to the tokenizer" in note for note in notes["english"])


@pytest.mark.parametrize("task", ["classify", "regress", "fill"])
@pytest.mark.parametrize("positions", ["rotary", "learned"])
def test_an_encoder_from_scratch_can_be_exported(place: Path, tmp_path: Path, task: str, positions: str) -> None:
    """Nobody has to know what a pooler is."""
    write_table(tmp_path / "numbers.csv", [["text", "label"], *[[text, len(text)] for text in texts(60, 5)]])
    corpus = {"classify": place / "rows.csv", "regress": tmp_path / "numbers.csv", "fill": place / "docs.txt"}[task]
    parts = {"width": 16, "heads": 2, "layers": 1, "positions": positions, "embedding_norm": True, "output_bias": True}
    table: dict[str, Any] = {
        "task": task,
        "data": {"corpus": str(corpus), "length": 24},
        "tokenizer": {"vocab_size": 90},
    }
    trainer = begin(Recipe.read({**table, "model": parts, "train": TRAIN, "runtime": {"threads": 1}}), tmp_path / "run")
    assert trainer.recipe.model.pooler == ("gelu" if positions == "rotary" and task != "fill" else "tanh")
    assert not any("export" in note for note in trainer.notes)
    model = {**parts, "norm_place": "pre"}
    trainer = begin(Recipe.read({**table, "model": model, "train": TRAIN, "runtime": {"threads": 1}}), tmp_path / "no")
    assert trainer.recipe.model.pooler == "none"
    [note] = [note for note in trainer.notes if "export" in note]
    assert note.startswith("export to Hugging Face will not be possible: the nearest is ")
    assert "norm_place = 'post' (here 'pre')" in note


# --- what does not fit


def more_tokens(folder: Path, name: str = "tokenizer.json") -> None:
    made = tokenizers.Tokenizer.from_file(str(folder / name))
    made.add_tokens([f"new{number}" for number in range(2)])
    made.save(str(folder / name))


def a_tensor_less(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["bert.encoder.layer.1.output.dense.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def a_gap_in_the_ids(folder: Path) -> None:
    """As many tokens as before, but one of them has a number beyond the table."""
    made = json.loads((folder / "tokenizer.json").read_text())
    made["model"]["vocab"][WORDS[-1]] = 500
    (folder / "tokenizer.json").write_text(json.dumps(made))


def no_number(folder: Path, value: float = float("nan")) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["bert.encoder.layer.1.output.dense.weight"][3, 2] = value
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def an_absurd_context(folder: Path) -> None:
    shutil.rmtree(folder)
    make_folder(folder, "fill", positions="rotary", context=100_001)


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (a_gap_in_the_ids, "tokenizer.json has 501 tokens, the embedding table 23 rows"),
        (no_number, "tensor 'stack.blocks.1.feed.output.weight' has values that are not finite"),
        (lambda folder: no_number(folder, float("-inf")), "has values that are not finite"),
        (an_absurd_context, "context = 100,001; accepted: up to 100,000"),
        (more_tokens, "tokenizer.json has 25 tokens, the embedding table 23 rows"),
        (a_tensor_less, "encoder.layer.1.output.dense.weight"),
        (
            lambda folder: (folder / "tokenizer.json").unlink(),
            "has no tokenizer.json, so the meaning",
        ),
        (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
        (shutil.rmtree, "no such model; accepted: a run, a name of `qkv models list`"),
    ],
)
def test_a_folder_that_cannot_be_fine_tuned_is_named(
    place: Path, tmp_path: Path, harm: Callable[[Path], None], sentence: str
) -> None:
    make_folder(tmp_path / "other", "fill")
    harm(tmp_path / "other")
    with pytest.raises(UserError) as error:
        qkv.train(tuning(place, init=str(tmp_path / "other")), tmp_path / "run")
    assert sentence in str(error.value)
    assert str(tmp_path / "other") in str(error.value)
    assert not Run(tmp_path / "run").begun


@pytest.mark.parametrize(
    ("task", "init", "sentence"),
    [
        (
            "classify",
            "bundled-en-fr",
            "'encoder-decoder', which task = 'classify' cannot use; accepted: encoder or decoder",
        ),
        (
            "fill",
            "bundled-gpt",
            "task = 'fill' cannot use; accepted: encoder; such models by name: bundled-encoder, minilm",
        ),
        ("complete", "bundled-encoder", "cannot use; accepted: decoder; such models by name: bundled-gpt"),
        ("translate", "bundled-gpt", "accepted: encoder-decoder; such models by name: bundled-en-fr"),
    ],
)
def test_a_model_of_another_family_is_refused(place: Path, tmp_path: Path, task: str, init: str, sentence: str) -> None:
    recipe = Recipe.read({"task": task, "init": init, "data": {"corpus": str(place / "rows.csv")}})
    with pytest.raises(UserError, match=re.escape(sentence)) as error:
        qkv.train(recipe, tmp_path / "run")
    assert str(error.value).startswith(f"init = '{init}': its family is ")


def test_a_part_that_is_another_is_refused(place: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"brings its own model; remove model\.width = 32 \(it has 16\)"):
        qkv.train(tuning(place, model={"width": 32}), tmp_path / "run")
    assert begin(tuning(place, model={"width": 16}), tmp_path / "run").recipe.model.width == 16


def test_a_run_without_a_model_yet_is_refused(place: Path, tmp_path: Path) -> None:
    begin(tuning(place), tmp_path / "young")
    with pytest.raises(UserError, match=r"init: .*young: this run has no model yet"):
        qkv.train(tuning(place, init=str(tmp_path / "young")), tmp_path / "run")


def test_without_a_checkpoint_a_run_needs_its_pre_trained_model(place: Path, tmp_path: Path) -> None:
    make_folder(tmp_path / "other", "fill")
    recipe = tuning(place, init=str(tmp_path / "other"))
    begin(recipe, tmp_path / "run")
    before = {file.name: file.read_bytes() for file in (tmp_path / "run").iterdir() if file.is_file()}
    shutil.rmtree(tmp_path / "other")
    with pytest.raises(UserError, match="other: no such model"):
        qkv.train(recipe, tmp_path / "run")
    make_folder(tmp_path / "other", "fill", seed=2)
    with pytest.raises(UserError, match=r"run: .*other has changed since this run was begun; train in another folder"):
        qkv.train(recipe, tmp_path / "run")
    assert {file.name: file.read_bytes() for file in (tmp_path / "run").iterdir() if file.is_file()} == before
    shutil.rmtree(tmp_path / "other")
    make_folder(tmp_path / "other", "fill")
    assert qkv.train(recipe, tmp_path / "run").config.head == "classification"


def stop_after(steps: int, recipe: Recipe, path: Path) -> None:
    with open_trainer(recipe, path) as trainer:
        for report in trainer.reports():
            if report.step == steps:
                return


@pytest.mark.parametrize("other", ["gone", "changed"])
def test_with_a_checkpoint_a_run_no_longer_needs_its_pre_trained_model(place: Path, tmp_path: Path, other: str) -> None:
    make_folder(tmp_path / "other", "fill")
    recipe = tuning(place, init=str(tmp_path / "other"), train={"steps": 6, "save_every": 2})
    qkv.train(recipe, tmp_path / "whole")
    stop_after(3, recipe, tmp_path / "run")
    shutil.rmtree(tmp_path / "other")
    if other == "changed":
        make_folder(tmp_path / "other", "fill", seed=2, layers=1)
    with open_trainer(recipe, tmp_path / "run") as trainer:
        assert trainer.resumed_at == 2
    qkv.train(recipe, tmp_path / "run")
    learnt, expected = state(tmp_path / "run"), state(tmp_path / "whole")
    assert learnt.keys() == expected.keys()
    assert all(torch.equal(learnt[name], expected[name]) for name in learnt)


def test_the_card_names_the_pre_trained_model(place: Path, tmp_path: Path) -> None:
    qkv.train(tuning(place), tmp_path / "run")
    sha256 = hashlib.sha256((place / "pre" / "model.safetensors").read_bytes()).hexdigest()  # what sha256sum prints
    assert Run(tmp_path / "run").hashes()["init"] == sha256
    line = f"| fine-tuned from | {markdown(place / 'pre')}, sha256 of its model.safetensors `{sha256}` |\n"
    assert line in (tmp_path / "run" / "README.md").read_text()
    assert "fine-tuned from" not in (place / "pre" / "README.md").read_text()


def test_a_run_of_other_examples_is_not_resumed(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, run = tuning(place, train={"steps": 4, "save_every": 2}), Run(tmp_path / "run")
    stop_after(3, recipe, run.path)
    saved = run.checkpoints.load(2)

    def save_with(changed: dict[str, Any]) -> None:
        shutil.rmtree(run.checkpoints.folder(2))
        run.save(replace(saved, fingerprint=changed), best_step=0)

    first = {name: value for name, value in saved.fingerprint.items() if name != "examples"}  # of the first version
    for fingerprint in ({**saved.fingerprint, "examples": 999}, first):
        save_with(fingerprint)
        with pytest.raises(UserError, match="run: was begun by a version of qkv that makes other examples of the same"):
            qkv.train(recipe, run.path)
    with monkeypatch.context() as patch:
        patch.setattr(trainer_module, "EXAMPLES_VERSION", 1)
        assert begin(recipe, run.path).resumed_at == 2
    save_with(saved.fingerprint)
    assert begin(recipe, run.path).resumed_at == 2


# --- how it is trained


def test_what_is_frozen_stays_and_lower_layers_learn_slower(place: Path, tmp_path: Path) -> None:
    learnt = state(place / "pre")
    qkv.train(tuning(place, train={"freeze": 2, "steps": 4, "keep": "last"}), tmp_path / "frozen")
    frozen = state(tmp_path / "frozen")
    still = {name for name in frozen if name in learnt and torch.equal(frozen[name], learnt[name])}
    low = {name for name in frozen if name.startswith("embedding.") or "embedding_norm" in name or "blocks.0" in name}
    assert still == low
    train = {"layer_decay": 0.25, "steps": 1, "weight_decay": 0.0, "clip": 0.0, "schedule": "constant", "keep": "last"}
    qkv.train(tuning(place, train=train), tmp_path / "slower")
    slower = state(tmp_path / "slower")
    moved = {
        n: float((slower[n] - learnt[n]).abs().max())
        for n in learnt
        if n in slower and slower[n].shape == learnt[n].shape
    }
    sizes = [
        moved[name]
        for name in ("text.dense.weight", "stack.blocks.1.feed.inner.weight", "stack.blocks.0.feed.inner.weight")
    ]
    assert sizes == pytest.approx([5e-3, 5e-3 / 4, 5e-3 / 16], rel=0.02)
    assert moved["embedding.table_VD"] == pytest.approx(5e-3 / 64, rel=0.02)


def test_so_many_rows_are_trained_on(place: Path, tmp_path: Path) -> None:
    found = {}
    for name, seed in (("a", 1), ("again", 1), ("b", 2)):
        trainer = begin(tuning(place, seed=seed, data={"rows": 17}), tmp_path / name)
        dataset, prepared = trainer.state.train, trainer.data.prepared
        assert isinstance(dataset, TextDataset)
        assert len(dataset) == 17
        assert len(trainer.state.validation) == len(prepared.validation)
        assert f"trained on 17 of {prepared.rows('train')} training rows (data.rows)" in trainer.notes
        steps = range(dataset.sampler.batches)
        seen = {n for step in steps for batch in batches_of(trainer.state, step) for n in batch.examples_B.tolist()}
        assert seen == set(range(17))
        found[name] = [dataset.store.tokens.tolist(), dataset.store.labels_R.tolist()]
    assert found["a"] == found["again"] != found["b"]
    trainer = begin(pretraining(place, data={"rows": 9}), tmp_path / "documents")
    assert isinstance(trainer.state.train, MaskedDataset)
    assert len(trainer.state.train) == len(np.unique(trainer.state.train.store.labels_R)) == 9


# --- regression

REGRESS = {"task": "regress", "data": {"label": "score"}}


@pytest.fixture(scope="module")
def regressed(place: Path) -> Path:
    """A run that has learnt how good a text is, between 100 and 140."""
    rows = [
        [text, 100 + 10 * min(4, text.split().count("good") + text.split().count("great"))] for text in texts(300, 3)
    ]
    write_table(place / "scores.csv", [["text", "score"], *rows])
    data = {"corpus": str(place / "scores.csv"), "label": "score", "length": 24}
    train = {**TRAIN, "steps": 80, "batch_tokens": 512, "learning_rate": 1e-2, "eval_every": 40}
    table = {"task": "regress", "data": data, "model": {**MODEL, "layers": 1}, "train": train}
    qkv.train(Recipe.read({**table, "runtime": {"threads": 1}}), place / "regressed")
    return place / "regressed"


def scores_of(place: Path) -> list[tuple[str, float]]:
    with (place / "scores.csv").open() as file:
        return [(text, float(score)) for text, score in list(csv.reader(file))[1:]]


def test_predictions_are_on_the_scale_of_the_file(regressed: Path, place: Path) -> None:
    last = Run(regressed).metrics()[-1]
    assert last["validation_pearson"] > 0.5
    assert {"validation_spearman", "validation_rmse"} <= last.keys()
    rows = scores_of(place)
    predicted = np.array([one.value for one in qkv.load(regressed).predict([text for text, _ in rows])], float)
    scores = np.array([score for _, score in rows])
    assert abs(predicted.mean() - scores.mean()) < 0.5 * scores.std()
    assert np.corrcoef(predicted, scores)[0, 1] > 0.5
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(regressed).eval()
    assert theirs.config.num_labels == 1
    encoded = transformers.AutoTokenizer.from_pretrained(regressed)([rows[0][0]], return_tensors="pt")
    with torch.no_grad():
        value = theirs(input_ids=encoded["input_ids"]).logits.item()
    assert value == pytest.approx(predicted[0], abs=1e-3)


def test_the_commands_show_regression(regressed: Path, place: Path) -> None:
    shown = fork_server().run(place, "eval", regressed)
    assert shown.code == 0, shown.err
    assert all(word in shown.out for word in ("pearson", "spearman", "rmse"))
    said = fork_server().run(place, "predict", regressed, "the film was good", "bad")
    assert [90 < float(line) < 150 for line in said.out.splitlines()] == [True, True]
    assert "A regression model: a number for a text" in (regressed / "README.md").read_text()


@pytest.mark.parametrize("label", ["good", "nan", "inf", "-Infinity", "1e300", "3,5"])
def test_regression_needs_numbers(place: Path, tmp_path: Path, label: str) -> None:
    write_table(tmp_path / "scores.csv", [["text", "label"], *[[t, "1.5"] for t in texts(30, 5)], ["x", label]])
    with pytest.raises(UserError) as error:
        qkv.train(tuning(tmp_path, "scores.csv", str(place / "pre"), task="regress"), tmp_path / "run")
    reason = "is not a number such as 3.5; for class labels use task = 'classify'"
    assert f"scores.csv, line 32: {label!r} {reason}" in str(error.value)
    assert not Run(tmp_path / "run").begun


def test_classes_after_regression_and_regression_after_classes(regressed: Path, place: Path, tmp_path: Path) -> None:
    model = qkv.train(tuning(place, init=str(regressed)), tmp_path / "labels")
    assert model.config.head == "classification"
    assert model.predict(["good"])[0].label in ("bad", "good", "neither")
    again = qkv.train(tuning(place, "scores.csv", str(tmp_path / "labels"), **REGRESS), tmp_path / "again")
    assert again.config.head == "regression"
    assert 50 < (again.predict(["good"])[0].value or 0) < 200


def test_regression_after_regression_begins_with_a_new_output_layer(
    regressed: Path, place: Path, tmp_path: Path
) -> None:
    """Targets have mean 0 and deviation 1; the old output layer would predict on the old scale."""
    trainer = begin(tuning(place, "scores.csv", str(regressed), **REGRESS), tmp_path / "run")
    first = validate(trainer.state)
    assert first is not None
    assert first.metrics["rmse"] < 2 * np.array([score for _, score in scores_of(place)]).std()


def test_a_regression_goes_on_from_what_it_has_learnt(regressed: Path, place: Path, tmp_path: Path) -> None:
    """Its last layer holds the mean and the deviation of the old numbers; the new ones have others."""
    rows = [[text, 3 * score - 40] for text, score in scores_of(place)[:100]]
    write_table(tmp_path / "other.csv", [["text", "score"], *rows])
    recipe = tuning(tmp_path, "other.csv", str(regressed), **REGRESS)
    trainer, old = begin(recipe, tmp_path / "run"), state(regressed)
    assert trainer.notes[0] == f"output layer taken from {regressed}"
    numbers = trainer.data.prepared.train.labels_R.astype(np.float64)
    own = trainer.state.model.state_dict()
    weight = old["text.output.weight"].double() / numbers.std()
    bias = (old["text.output.bias"].double() - numbers.mean()) / numbers.std()
    torch.testing.assert_close(own["text.output.weight"].double(), weight, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(own["text.output.bias"].double(), bias, rtol=1e-6, atol=1e-6)
    files = trained_files(trainer.state.model, trainer.recipe, trainer.data.prepared, 1.0)
    for name, tensor in load_file(regressed / "model.safetensors").items():  # before the first step: as it was
        torch.testing.assert_close(files.tensors[name], tensor, rtol=1e-5, atol=1e-4)


def test_a_regression_of_a_decoder_has_no_mean_to_move(place: Path, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "gpt", "complete", head="regression")
    write_table(tmp_path / "numbers.csv", [["text", "score"], *[[text, len(text)] for text in texts(60, 5)]])
    trainer = begin(tuning(tmp_path, "numbers.csv", "gpt", **REGRESS), tmp_path / "run")
    deviation = trainer.data.prepared.train.labels_R.astype(np.float64).std()
    own, old = trainer.state.model.state_dict(), state(folder)
    torch.testing.assert_close(own["text.output.weight"].double() * deviation, old["text.output.weight"].double())
