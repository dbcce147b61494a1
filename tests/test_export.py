"""A model is exported with a certificate, and the command line around it: predict and export as a person uses them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file

import qkv
from qkv.config import presets
from qkv.exchange.folder import write_folder
from qkv.exchange.hf import write_model
from qkv.export import Certificate, certify, export_hf
from qkv.model import build_model
from qkv.schema import UserError
from tests.support.small_folders import CONFIGS, make_folder

transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()


def run(*arguments: str, stdin: bytes = b"") -> tuple[int, str, str]:
    command = [sys.executable, "-P", "-m", "qkv.cli.main", *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, timeout=120)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("cli") / "classifier", "classify")


@pytest.mark.parametrize("task", CONFIGS)
def test_every_task_is_exported_with_a_small_difference(task: str, tmp_path: Path) -> None:
    source = make_folder(tmp_path / "in", task)
    certificate = export_hf(source, tmp_path / "out")
    assert certificate.peer.startswith("transformers")
    assert certificate.difference < 1e-4 * max(1.0, certificate.largest)
    before, after = load_file(source / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"**{certificate.difference:.2e}**" in card
    assert certificate.architecture in card
    assert (tmp_path / "out" / "tokenizer.json").read_text() == (source / "tokenizer.json").read_text()


def test_a_certificate_notices_a_difference(tmp_path: Path) -> None:
    """The same folder, certified against a model with one weight changed."""
    loaded = qkv.load(make_folder(tmp_path / "in", "classify"))
    written = write_model(loaded.model, loaded.config)
    with torch.no_grad():
        next(loaded.model.parameters()).mul_(1.5)
    assert certify(loaded.model, loaded.config, written, tmp_path / "in").difference > 1e-3


def test_nothing_is_written_where_something_is(classifier: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine.txt").write_text("keep")
    with pytest.raises(UserError, match="taken"):
        export_hf(classifier, tmp_path / "taken")
    assert [file.name for file in tmp_path.iterdir()] == ["taken"]
    assert (tmp_path / "taken" / "mine.txt").read_text() == "keep"


def test_predict_prints_one_line_for_each_line(classifier: Path) -> None:
    code, out, err = run("predict", str(classifier), stdin="the film was good\n\nnaïve 🙂\r\nlast".encode())
    assert (code, err) == (0, "")
    assert len(out.splitlines()) == 4


def test_predict_as_json_and_from_a_file(classifier: Path, tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("good film\nbad film\n")
    code, out, _ = run("predict", str(classifier), "--file", str(file), "--json")
    answers = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [answer["text"] for answer in answers] == ["good film", "bad film"]
    assert all(answer["label"] in answer["probabilities"] for answer in answers)


def test_predict_says_when_it_truncates(classifier: Path) -> None:
    code, out, err = run("predict", str(classifier), "good", "good " * 99)
    assert (code, len(out.splitlines())) == (0, 2)
    assert "note: 1 of 2 texts were truncated, first text 2" in err


@pytest.mark.parametrize(
    ("arguments", "stdin", "sentence"),
    [
        (["predict", "nowhere", "x"], b"", "nowhere: no such model"),
        (["predict", "{folder}"], b"ok\nbad \xff\n", "stdin, line 2: not UTF-8"),
        (["predict", "{folder}", "--file", "gone.txt"], b"", "gone.txt: cannot be read: No such file or directory"),
        (["predict", "{folder}", "x", "--file", "y"], b"", "give texts or --file, not both"),
        (["export", "{folder}", "--to", "gguf", "-o", "x"], b"", "--to gguf: unknown format; accepted: hf"),
        (["export", "{folder}", "-o", "no/such/parent"], b"", "no/such"),
        (["export", "nowhere", "-o", "x"], b"", "nowhere: no such model"),
    ],
)
def test_mistakes_get_a_sentence(classifier: Path, arguments: list[str], stdin: bytes, sentence: str) -> None:
    code, out, err = run(*(argument.format(folder=classifier) for argument in arguments), stdin=stdin)
    assert (code, out) == (2, "")
    assert sentence in err
    assert "Traceback" not in err


def test_an_export_with_other_logits_is_refused(tmp_path: Path) -> None:
    for difference, largest in ((0.4, 0.3), (float("nan"), 1.0), (2e-3, 10.0)):
        with pytest.raises(UserError, match="X: witness computes other logits: they differ by"):
            Certificate("X", "witness", difference, largest, 1).must_hold()
    Certificate("X", "witness", 5e-4, 10.0, 1).must_hold()


@pytest.mark.parametrize("name", presets.names())
def test_every_preset_loads_in_transformers_as_it_is(name: str, tmp_path: Path) -> None:
    """In small, with nobody naming special ids: no id outside the vocabulary, no weight missing or too many."""
    config = presets.load(name)
    heads = {"width": 12, "heads": 2, "kv_heads": 0, "head_width": 6, "layers": 2, "feedforward": 17, "vocabulary": 23}
    config = config.replace(**heads, context=31, decoder_layers=0)
    model = build_model(config, seed=3)
    written = write_model(model, config)
    write_folder(tmp_path / "m", config=written.config, generation={}, tensors=written.tensors, files={})
    theirs = getattr(transformers, written.name)
    _, report = theirs.from_pretrained(tmp_path / "m", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    certify(model.eval(), config, written, tmp_path / "m").must_hold()


@pytest.mark.parametrize("context", [1, 3, 11])
def test_a_short_context_is_certified_with_short_texts(context: int, tmp_path: Path) -> None:
    """And the card says which lengths were really compared."""
    export_hf(make_folder(tmp_path / "in", "complete", context=context), tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"texts of {', '.join(3 * [str(max(1, min(7, context - 2)))]) if context < 9 else '7, 9, 9'} tokens" in card
