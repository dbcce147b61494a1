"""What hostile configs and tokenizers may say: labels are printed, ids are indices, panics are sentences."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import qkv
from qkv.export import export_hf
from qkv.schema import UserError
from tests.support.small_folders import IDS, make_folder

Change = Callable[[dict[str, Any]], object]


def changed(folder: Path, file: str, **keys: Any) -> Path:
    path = folder / file
    said = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**said, **keys}))
    return folder


@pytest.mark.parametrize(
    "labels",
    [
        None, 5, "x", [], {"a": 1}, {"0": "good", "1": "good", "2": "bad"}, {"0": "a\nb", "1": "c", "2": "d"},
        {"0": "\x1b[2J", "1": "c", "2": "d"}, {"0": ["list"], "1": "c", "2": "d"},
        {"0": "x" * 1000, "1": "c", "2": "d"},
        {"0": "a", "1": "b"},
    ],
)  # fmt: skip
def test_labels_that_cannot_be_shown_are_numbered(labels: Any, tmp_path: Path) -> None:
    folder = changed(make_folder(tmp_path / "m", "classify"), "config.json", id2label=labels)
    (answer,) = qkv.load(folder).predict(["the film was good"])
    assert answer.probabilities is not None
    assert list(answer.probabilities) == ["LABEL_0", "LABEL_1", "LABEL_2"]
    assert sum(answer.probabilities.values()) == pytest.approx(1.0)
    assert export_hf(folder, tmp_path / "out").difference < 1e-4


def test_nothing_that_is_run_is_exported(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "m", "classify")
    changed(
        folder, "config.json", auto_map={"AutoModel": "evil.Model"}, quantization_config={"x": 1}, **{"x.y": 1}, x=5
    )
    export_hf(folder, tmp_path / "out")
    said = json.loads((tmp_path / "out" / "config.json").read_text())
    assert not {"auto_map", "quantization_config", "x", "x.y"} & said.keys()
    assert said["id2label"] == {"0": "bad", "1": "good", "2": "neither"}


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"problem_type": "multi_label_classification"}, "problem_type = 'multi_label_classification' with 3 outputs"),
        ({"problem_type": "regression"}, "accepted: single_label_classification, or regression with one output"),
        (
            {"architectures": ["BertForTokenClassification"]},
            "architectures = 'BertForTokenClassification' is not read here",
        ),
        (
            {"architectures": ["BertForMultipleChoice"]},
            "accepted: BertModel, BertForMaskedLM, BertForPreTraining, Bert",
        ),
    ],
)
def test_other_kinds_of_heads_are_refused(keys: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    folder = changed(make_folder(tmp_path / "m", "classify"), "config.json", **keys)
    with pytest.raises(UserError) as error:
        qkv.load(folder)
    assert sentence in str(error.value)
    assert str(folder / "config.json") in str(error.value)


def test_forced_first_and_banned_tokens(tmp_path: Path) -> None:
    """forced_bos_token_id and bad_words_ids, as `generate` understands them."""
    folder = make_folder(tmp_path / "m", "translate")
    texts = ["the film was good", "a very dull plot", "tired tired", "we saw it", "good", "it is not bad"]
    text, banned = next(
        (answer.text, IDS[answer.output.split()[0]])
        for answer in qkv.load(folder).predict(texts, max_tokens=4)
        if answer.output
    )
    changed(folder, "generation_config.json", forced_bos_token_id=9, bad_words_ids=[[banned]], eos_token_id=IDS["</s>"],
            decoder_start_token_id=0, pad_token_id=0)  # fmt: skip
    predictor = qkv.load(folder)
    (answer,) = predictor.predict([text], max_tokens=6)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    ids = torch.tensor([predictor.tokenizer.encode([text])[0].ids])
    made = model.generate(ids, do_sample=False, num_beams=1, max_new_tokens=6, forced_eos_token_id=None)
    assert made[0, 1] == 9
    assert answer.output == predictor.tokenizer.decode(made[0, 1:].tolist())


@pytest.mark.parametrize("key", ["eos_token_id", "decoder_start_token_id", "forced_bos_token_id"])
@pytest.mark.parametrize("value", [-1, 10**9, "2", 1.5, [1, -1], {"a": 1}])
def test_ids_outside_the_vocabulary_are_refused_where_they_are_used(key: str, value: Any, tmp_path: Path) -> None:
    folder = changed(make_folder(tmp_path / "m", "translate"), "config.json", **{key: value})
    with pytest.raises(UserError, match=f"{key} = .* must be token ids from 0 to 22"):
        qkv.load(folder)


def test_an_id_that_nothing_uses_is_ignored(tmp_path: Path) -> None:
    folder = changed(make_folder(tmp_path / "m", "classify"), "config.json", eos_token_id=-1)
    assert len(qkv.load(folder).predict(["good"])) == 1


BROKEN: dict[str, Change] = {
    "no object": lambda t: t.clear(),
    "unknown token not in the vocabulary": lambda t: t["model"].update(unk_token="nowhere"),
    "a charsmap that is none": lambda t: t.update(normalizer={"type": "Precompiled", "precompiled_charsmap": ""}),
    "a special token without a name": lambda t: t["post_processor"]["single"][0]["SpecialToken"].update(id="x"),
    "a template of the second text only": lambda t: t["post_processor"].update(
        single=[{"Sequence": {"id": "B", "type_id": 0}}]
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_tokenizer_is_a_sentence(name: str, tmp_path: Path) -> None:
    """Also where the library panics, which is no Exception in Python."""
    folder = make_folder(tmp_path / "m", "classify")
    path = folder / "tokenizer.json"
    said = json.loads(path.read_text())
    BROKEN[name](said)
    path.write_text(json.dumps(said))
    with pytest.raises(UserError, match="tokenizer"):
        qkv.load(folder).predict(["an unheard word"])


def test_a_truncated_embedding_says_so(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="1 of 2 texts were truncated, first 'good good good"):
        qkv.load(make_folder(tmp_path / "m", "embed")).embed(["good", "good " * 99])


def test_a_truncated_mask_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no \[MASK\] in the part of it that fits"):
        qkv.load(make_folder(tmp_path / "m", "fill")).predict(["good " * 99 + "[MASK]"])
