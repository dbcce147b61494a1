"""Text in, Prediction out, from a Hugging Face folder; `transformers` predicts the same from the same folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import qkv
from qkv.export import export_hf
from qkv.metrics import ClassificationMetrics, Metrics
from qkv.predict.prediction import BATCH_TOKENS, InputOptions, batches
from qkv.predict.predictor import Predictor
from qkv.schema import UserError
from tests.support.small_folders import IDS, make_folder

transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()
TEXTS = ["the film was good", "a very dull plot", "it is not bad and we saw it", "good", "tired tired", "we saw"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("folders")
    tasks = ("fill", "classify", "regress", "embed", "complete", "last-token", "llama", "translate")
    return {task: make_folder(root / task, task) for task in tasks}


def pipeline(task: str, folder: Path, **options: Any) -> Any:
    return transformers.pipeline(task, model=str(folder), device="cpu", **options)


def test_labels_are_those_of_the_pipeline(folders: dict[str, Path]) -> None:
    ours = qkv.load(folders["classify"]).predict(TEXTS)
    for text, answer, said in zip(
        TEXTS, ours, pipeline("text-classification", folders["classify"])(TEXTS), strict=True
    ):
        assert (answer.text, answer.label) == (text, said["label"])
        assert answer.probabilities is not None
        assert answer.probabilities[said["label"]] == pytest.approx(said["score"], abs=1e-6)
        assert sum(answer.probabilities.values()) == pytest.approx(1.0)
    assert len({answer.label for answer in ours}) > 1, "a test of labels needs more than one of them"


def test_a_decoder_classifies_by_its_last_token(folders: dict[str, Path]) -> None:
    said = pipeline("text-classification", folders["last-token"])(TEXTS)
    assert [a.label for a in qkv.load(folders["last-token"]).predict(TEXTS)] == [s["label"] for s in said]


def test_a_decoder_that_classifies_is_evaluated(folders: dict[str, Path], tmp_path: Path) -> None:
    said = [answer.label for answer in qkv.load(folders["last-token"]).predict(TEXTS)]
    wrong = {"bad": "good", "good": "bad"}
    assert wrong.keys() >= set(said[:1])
    rows = [
        f"{text},{wrong[str(label)] if n == 0 else label}"
        for n, (text, label) in enumerate(zip(TEXTS, said, strict=True))
    ]
    (tmp_path / "rows.csv").write_text("\n".join(["text,label", *rows, ""]))
    found = qkv.evaluate(folders["last-token"], str(tmp_path / "rows.csv"))["all"]
    assert isinstance(found, ClassificationMetrics)
    assert found.rows == 6
    assert found.accuracy == pytest.approx(5 / 6)
    with pytest.raises(UserError, match=r"complete: has no test set of its own; give --data FILE$"):
        qkv.evaluate(folders["complete"])
    running = qkv.evaluate(folders["complete"], str(tmp_path / "rows.csv"))["all"]
    assert isinstance(running, Metrics)
    assert running.values["bits_per_byte"] > 0


def test_masks_are_filled_as_the_pipeline_fills_them(folders: dict[str, Path]) -> None:
    texts = ["the [MASK] was good", "a very dull [MASK]"]
    for answer, said in zip(
        qkv.load(folders["fill"]).predict(texts), pipeline("fill-mask", folders["fill"])(texts), strict=True
    ):
        assert answer.alternatives is not None
        assert [a["token"] for a in answer.alternatives] == [s["token_str"] for s in said]
        assert [a["probability"] for a in answer.alternatives] == pytest.approx([s["score"] for s in said], abs=1e-6)
        assert answer.output == str(answer.text).replace("[MASK]", said[0]["token_str"])


def test_several_masks_in_one_text(folders: dict[str, Path]) -> None:
    (answer,) = qkv.load(folders["fill"]).predict(["the [MASK] was [MASK]"], top=2)
    assert answer.alternatives is not None
    assert len(answer.alternatives) == 4
    assert answer.output is not None
    assert "[MASK]" not in answer.output


def test_regression_predicts_a_number(folders: dict[str, Path]) -> None:
    said = pipeline("text-classification", folders["regress"], function_to_apply="none")(TEXTS)
    assert [a.value for a in qkv.load(folders["regress"]).predict(TEXTS)] == pytest.approx(
        [s["score"] for s in said], abs=1e-6
    )


@pytest.mark.parametrize("task", ["complete", "llama"])
def test_continuations_are_those_of_generate(folders: dict[str, Path], task: str) -> None:
    """Greedy, one text at a time there, all at once with padding here."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folders[task])
    predictor = qkv.load(folders[task])
    for text, answer in zip(TEXTS, predictor.predict(TEXTS, max_tokens=5), strict=True):
        ids = torch.tensor([predictor.tokenizer.encode([text])[0].ids])
        made = model.generate(ids, do_sample=False, max_new_tokens=5)[0, ids.shape[1] :]
        assert answer.output == predictor.tokenizer.decode(made.tolist())


def test_translations_are_those_of_generate(folders: dict[str, Path]) -> None:
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folders["translate"])
    predictor = qkv.load(folders["translate"])
    for text, answer in zip(TEXTS, predictor.predict(TEXTS, max_tokens=7), strict=True):
        ids = torch.tensor([predictor.tokenizer.encode([text])[0].ids])
        made = model.generate(ids, do_sample=False, num_beams=1, max_new_tokens=7, forced_eos_token_id=None)
        assert answer.output == predictor.tokenizer.decode(made[0, 1:].tolist())
        assert answer.log_probability is not None
        assert answer.log_probability < 0


def declare(folder: Path, config: object, modules: object = None) -> Path:
    """What sentence-transformers writes beside a model."""
    path = {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
    (folder / "modules.json").write_text(json.dumps([{"path": "", "type": "x"}, path] if modules is None else modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("declared", "pool"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False, "word_embedding_dimension": 12}, "mean"),
        ({"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}, "first"),
        ({"pooling_mode_lasttoken": True}, "last"),
        ({"pooling_mode": "cls"}, "first"),
        ({}, "mean"),
    ],
)
def test_embeddings_are_pooled_as_their_folder_declares(tmp_path: Path, declared: dict[str, Any], pool: str) -> None:
    predictor = qkv.load(declare(make_folder(tmp_path / "model", "embed"), declared))
    (found,) = predictor.embed(["the film was good"])
    ids = torch.tensor([one.ids for one in predictor.tokenizer.encode(["the film was good"])])
    with torch.no_grad():
        hidden_LD = predictor.model(ids)[0]
    by_hand = {"mean": sum(hidden_LD) / 6, "first": hidden_LD[0], "last": hidden_LD[5]}  # [CLS], four words, [SEP]
    np.testing.assert_allclose(found, by_hand[pool].numpy(), rtol=1e-5, atol=1e-6)
    other = "last" if pool == "first" else "first"
    np.testing.assert_allclose(predictor.embed(["the film was good"], pool=other)[0], by_hand[other].numpy(), rtol=1e-5)


def test_a_pooling_that_is_not_known_here_is_named_and_can_be_overridden(tmp_path: Path) -> None:
    folder = declare(make_folder(tmp_path / "model", "embed"), {"pooling_mode_max_tokens": True})
    with pytest.raises(
        UserError, match=r"^pool = 'max_tokens' \(declared by the model's folder\): must be one of first"
    ):
        qkv.load(folder).embed(["good"])
    assert qkv.load(folder).embed(["good"], pool="mean").shape == (1, 12)
    (folder / "modules.json").write_text("{}")
    with pytest.raises(UserError, match=r"modules\.json: must be a JSON list in UTF-8"):
        qkv.load(folder)


def test_an_export_keeps_the_pooling(tmp_path: Path) -> None:
    folder = declare(make_folder(tmp_path / "model", "embed"), {"pooling_mode_cls_token": True})
    export_hf(folder, tmp_path / "out")
    assert qkv.load(tmp_path / "out").embedding_pool == "first"


@pytest.mark.parametrize("pool", ["mean", "first", "last"])
def test_embeddings_do_not_depend_on_company(folders: dict[str, Path], pool: str) -> None:
    predictor = qkv.load(folders["embed"])
    together = predictor.embed(TEXTS, pool=pool)
    alone = np.concatenate([predictor.embed([text], pool=pool) for text in TEXTS])
    assert together.shape == (6, 12)
    np.testing.assert_allclose(together, alone, atol=1e-5)


def test_no_texts_no_answers(folders: dict[str, Path]) -> None:
    assert qkv.load(folders["classify"]).predict([]) == []
    assert qkv.load(folders["embed"]).embed([]).shape == (0, 12)


def test_a_long_text_is_truncated_and_says_so(folders: dict[str, Path]) -> None:
    """The encoder keeps the beginning, the decoder the end, and room for its output."""
    long, short = "good " * 50, "good film"
    assert [a.truncated for a in qkv.load(folders["classify"]).predict([long, short])] == [True, False]
    (truncated,) = qkv.load(folders["complete"]).predict([long + "the plot"], max_tokens=4)
    (same,) = qkv.load(folders["complete"]).predict(["good " * 25 + "the plot"], max_tokens=4)
    assert (truncated.truncated, truncated.output) == (True, same.output)


@pytest.mark.parametrize(
    ("task", "arguments", "sentence"),
    [
        ("fill", {"texts": ["no mask"]}, "text 1, 'no mask', has no [MASK]; write it in place of the missing token"),
        ("embed", {"texts": ["x"]}, "this model has no head to predict with"),
        ("complete", {"texts": ["good"], "max_tokens": -1}, "max_tokens = -1: must be at least 0 and at most 100,000"),
        ("complete", {"texts": ["good"], "max_tokens": 31}, "max_tokens = 31: must be below this model's 31 positions"),
        ("fill", {"texts": ["a [MASK]"], "top": 99}, "top = 99: must be at least 1 and at most 23"),
        ("complete", {"texts": ["good"], "top_k": 3}, "top_k = 3: for sampling, but decoding is greedy; also set temp"),
        (
            "complete",
            {"texts": ["good"], "length_penalty": 1.0},
            "length_penalty = 1.0: for beam search; also set beam",
        ),
        ("classify", {"texts": ["good"], "beam": 3}, "beam = 3: for models that generate text; this one does not"),
        ("fill", {"texts": ["a [MASK]"], "stop": ["x"]}, "stop = ['x']: for models that generate text"),
        ("classify", {"texts": ["fine", "bad \ud800"]}, "text 2: character 4 is '\\ud800', half of a character"),
    ],
)
def test_mistakes_are_named(folders: dict[str, Path], task: str, arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as error:
        qkv.load(folders[task]).predict(**arguments)
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        ("good", "texts is one string, 'good'; give a list of texts: ['good']"),
        ([1], "text 1 is of type int; must be str, or a pair of them"),
    ],
)
def test_texts_are_a_list_of_texts(folders: dict[str, Path], texts: Any, sentence: str) -> None:
    predictor = qkv.load(folders["classify"])
    for ask in (predictor.predict, predictor.embed):
        with pytest.raises(UserError) as error:
            ask(texts)
        assert str(error.value) == sentence


def test_a_predictor_says_what_it_is(folders: dict[str, Path]) -> None:
    said = repr(qkv.load(folders["classify"]))
    assert said == "<encoder, 2 layers, 12 wide, head classification: .predict(texts), .embed(texts)>"


def test_odd_text_is_answered_in_one_line(folders: dict[str, Path]) -> None:
    odd = ["", "\n\t", "naïve café", "🙂 good", "x" * 100_000, "a\u0000b", "\u202egood"]
    for answer in qkv.load(folders["classify"]).predict(odd):
        assert "\n" not in str(answer)


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "small", "classify", vocabulary=len(IDS) - 1)
    with pytest.raises(UserError, match=r"tokenizer\.json has 23 tokens, the model's vocabulary 22"):
        qkv.load(folder).predict(["good"])


def test_without_a_tokenizer_there_is_a_model_but_no_text(folders: dict[str, Path]) -> None:
    loaded = qkv.load(folders["classify"])
    bare = Predictor(loaded.model, loaded.config, None, labels=loaded.labels)
    with pytest.raises(UserError, match=r"this model has no tokenizer: its folder has no tokenizer\.json"):
        bare.predict(["good"])


def test_progress_counts_texts_not_windows(folders: dict[str, Path]) -> None:
    predictor = qkv.load(folders["classify"])
    predictor.input_options = InputOptions(length=8, truncation="windows")
    told = list[int]()
    predictor.predict(["good " * 40, "bad", "the plot " * 90], progress=told.append)
    assert sum(told) == 3


def test_batches_are_bounded_and_lose_nothing() -> None:
    lengths = [int(n) for n in np.random.default_rng(0).integers(1, 3000, 500)]
    made = list(batches(lengths))
    assert sorted(n for batch in made for n in batch) == list(range(500))
    assert all(len(batch) == 1 or len(batch) * max(lengths[n] for n in batch) <= BATCH_TOKENS for batch in made)
