"""The models that come with the package: whole, small, explained, and ready to be used and fine-tuned offline."""

from __future__ import annotations

import csv
import hashlib
import re
from pathlib import Path

import pytest

import qkv
from qkv import bundled
from qkv.config import recipes
from qkv.config.recipe import Recipe
from qkv.schema import read_toml

LARGEST = {"bundled-encoder": 12_000_000, "bundled-en-fr": 4 * 2**20, "bundled-gpt": 4 * 2**20}  # bytes of a folder


@pytest.mark.parametrize("name", LARGEST)
def test_a_bundled_model_is_small_and_explains_itself(name: str) -> None:
    folder = bundled.folder(name)
    files = {path.name: path for path in folder.iterdir()}
    assert sum(path.stat().st_size for path in files.values()) <= LARGEST[name]
    assert {"config.json", "model.safetensors", "tokenizer.json", "recipe.toml", "curves.png", "README.md"} <= set(
        files
    )
    card = files["README.md"].read_text(encoding="utf-8")
    digest = hashlib.sha256(files["model.safetensors"].read_bytes()).hexdigest()
    assert f"sha256 of model.safetensors: `{digest}`" in card
    for phrase in ("Certificate", "Licence:", "steps of", "sha256 of the data as read", "cpu_features", "curves.png"):
        assert phrase in card
    recipe = Recipe.read(read_toml(files["recipe.toml"]))
    assert recipe.model.vocabulary == qkv.load(name).config.vocabulary
    assert not re.search(r"/(home|root|tmp|work)/", card + files["recipe.toml"].read_text())


def test_all_bundled_models_are_known_here() -> None:
    assert bundled.names() == sorted(LARGEST)


def test_the_encoder_fills_masks_and_classifies_pairs() -> None:
    encoder = qkv.load("bundled-encoder")
    filled, pair = encoder.predict(["This is the worst [MASK] I have ever seen.", ("It was good.", "I liked it.")])
    assert filled.alternatives is not None
    assert {"movie", "film"} & {one["token"] for one in filled.alternatives}
    assert pair.probabilities is not None
    assert set(pair.probabilities) == {"next", "not next"}
    assert encoder.embed(["a film", "a longer text about a film"]).shape == (2, encoder.config.width)


@pytest.mark.parametrize("name", ["bundled-en-fr", "bundled-gpt"])
def test_the_weights_of_the_generators_take_at_most_4_mb(name: str) -> None:
    assert (bundled.folder(name) / "model.safetensors").stat().st_size <= 4_000_000


def test_the_translator_translates() -> None:
    translator = qkv.load("bundled-en-fr")
    assert [one.output for one in translator.predict(["I am hungry.", "Where is the station?"])] == [
        "J'ai faim.",
        "Où est la gare ?",
    ]


def test_the_gpt_goes_on_in_english_and_by_its_seed() -> None:
    gpt = qkv.load("bundled-gpt")
    first, again, other = (gpt.predict(["It was a"], seed=seed)[0].output for seed in (1, 1, 2))
    assert first == again != other
    assert first is not None
    assert {"the", "of", "and"} & set(first.split())
    assert "".join(gpt.stream("It was a", seed=1)) == first


def test_it_is_fine_tuned_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["text", "label"])
        for number in range(400):
            bad = number % 2
            rows.writerow([f"film {number} was {'awful, a waste of time' if bad else 'wonderful, a joy'}", bad])
    monkeypatch.chdir(tmp_path)
    settings = [
        "data.corpus=rows.csv",
        "data.group=none",
        "train.steps=30",
        "train.warmup=3",
        "train.batch_tokens=1024",
    ]
    said: list[str] = []
    model = qkv.train("reviews-finetune", "run", settings=settings, say=said.append)
    assert model.predict(["what a wonderful joy"])[0].label == "0"
    assert any("newly initialised: text.dense" in sentence for sentence in said)
    assert "bundled-encoder, sha256 of its model.safetensors" in (tmp_path / "run" / "README.md").read_text()


def test_the_recipe_of_the_demo_needs_nothing_but_the_package_and_the_reviews() -> None:
    recipe = recipes.resolve("reviews-finetune")
    assert recipe.init == "bundled-encoder"
    assert recipe.data.corpus == "movie-reviews"
