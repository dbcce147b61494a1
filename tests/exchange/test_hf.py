"""The edges of reading and writing foreign models: what is refused, with which sentence and before what work; which
old and odd files are the same model all the same; which of our models cannot be exported, and which part prevents it.

That the numbers are right is shown in test_parity_hf.py. Here folders are written by our own exporter and then spoilt.
"""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from qkv.config import presets
from qkv.config.recipe import ModelConfig
from qkv.exchange.folder import Folder, open_folder, write_folder
from qkv.exchange.hf import read_model, write_model
from qkv.model import Model, lay_out
from qkv.schema import UserError
from tests.support.tiny_models import build, tiny

SQUARE: dict[str, Any] = {"width": 12, "head_width": 4}  # most foreign classes know no head width of its own
_BERT = {**SQUARE, "embedding_norm": True, "segments": 2, "output_bias": True, "head": "tokens", "norm_eps": 1e-12}
_BOTH = {**SQUARE, "tied": "all", "output_bias": True}
_LLAMA = {"norm": "rms", "norm_place": "pre", "bias": False, "activation": "swiglu", "tied": "none"}
_T5 = {"norm": "rms", "norm_place": "pre", "bias": False, "activation": "relu", "scale": "none", "tied": "all",
       "reach": 20, "buckets": 8, "output_scale": True}  # fmt: skip
CONFIGS: dict[str, ModelConfig] = {
    "bert": tiny("encoder", "learned", **_BERT),
    "distilbert": tiny("encoder", "learned", **{**_BERT, "segments": 0}),
    "roformer": tiny("encoder", "rotary", **_BERT),
    "gpt2": tiny("decoder", "learned", **SQUARE, norm_place="pre"),
    "llama": tiny("decoder", "rotary", **_LLAMA),
    "marian": tiny("encoder-decoder", "sinusoidal", **_BOTH),
    "pegasus": tiny("encoder-decoder", "sinusoidal", **_BOTH, norm_place="pre"),
    "bart": tiny("encoder-decoder", "learned", **_BOTH, embedding_norm=True),
    "t5": tiny("encoder-decoder", "t5", **_T5),
}
EMBEDDINGS, SINUSOIDS = "bert.embeddings.word_embeddings.weight", "roformer.encoder.embed_positions.weight"
ACTIVATIONS = "relu, gelu, gelu_new, gelu_pytorch_tanh, silu, swish, sigmoid, tanh, linear"
Spoil = Callable[[dict[str, Tensor]], dict[str, Tensor]]


def make(path: Path, config: ModelConfig, said: dict[str, Any] | None = None, spoil: Spoil = dict) -> Model:
    """Write a random model as a foreign folder, with some of config.json said otherwise and the tensors spoilt."""
    model = build(config).float()
    written = write_model(model, config)
    write_folder(
        path, config={**written.config, **(said or {})}, generation={}, tensors=spoil(written.tensors), files={}
    )
    return model


def refusal(path: Path) -> str:
    """What is said about a folder, its own name taken out."""
    with pytest.raises(UserError) as caught:
        read_model(open_folder(path))
    assert str(path) in str(caught.value), "an error names the file"
    return str(caught.value).replace(str(path), "FOLDER")


def assert_same(model: Model, other: Model) -> None:
    ours, theirs = model.state_dict(), other.state_dict()
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tensor may be read: what is wrong can be seen before."""

    def tensor(folder: Folder, name: str) -> Tensor:
        raise AssertionError(f"{name} was read from {folder.path}")

    monkeypatch.setattr(Folder, "tensor", tensor)


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize(
    ("kind", "said", "sentence"),
    [
        ("bert", {"model_type": "mamba"}, "model_type = 'mamba' is unknown here; accepted: bart, bert, distilbert, "
         "gpt2, llama, marian, pegasus, roformer, t5"),
        ("bert", {"is_decoder": True}, "is_decoder = True is not supported by qkv; accepted: False"),
        ("bert", {"add_cross_attention": True}, "add_cross_attention = True is not supported by qkv; accepted: False"),
        ("bert", {"position_embedding_type": "relative_key"},
         "position_embedding_type = 'relative_key' is not supported by qkv; accepted: 'absolute'"),
        ("bert", {"hidden_act": "mish"}, f"hidden_act = 'mish' is not supported by qkv; accepted: {ACTIVATIONS}"),
        ("bert", {"tie_word_embeddings": "yes"}, "the way its embeddings are tied is not supported by qkv"),
        ("distilbert", {"sinusoidal_pos_embds": True},
         "sinusoidal_pos_embds = True is not supported by qkv; accepted: False"),
        ("roformer", {"rotary_value": True}, "rotary_value = True is not supported by qkv; accepted: False"),
        ("roformer", {"embedding_size": 16}, "hidden_size = 12, embedding_size = 16; qkv has one value for both"),
        ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights = False is not supported by qkv; accepted: True"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True},
         "scale_attn_by_inverse_layer_idx = True is not supported by qkv; accepted: False"),
        ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0}},
         "rope_scaling = {'factor': 2.0, 'type': 'linear'} is not supported by qkv; accepted: None"),
        ("llama", {"rope_parameters": {"rope_type": "llama3"}},
         "rope_parameters.rope_type = 'llama3' is not supported by qkv; accepted: 'default'"),
        ("llama", {"attention_bias": True}, "attention_bias = True is not supported by qkv; accepted: False"),
        ("llama", {"mlp_bias": True}, "mlp_bias = True is not supported by qkv; accepted: False"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act = 'gelu' is not supported by qkv; accepted: 'silu'"),
        ("t5", {"feed_forward_proj": "gated-gelu"},
         f"feed_forward_proj = 'gated-gelu' is not supported by qkv; accepted: {ACTIVATIONS}"),
        ("marian", {"normalize_before": True}, "normalize_before = True is not supported by qkv; accepted: False"),
        ("bart", {"decoder_attention_heads": 6},
         "encoder_attention_heads = 3, decoder_attention_heads = 6; qkv has one value for both"),
        ("bart", {"decoder_ffn_dim": 6}, "encoder_ffn_dim = 17, decoder_ffn_dim = 6; qkv has one value for both"),
        ("bert", {"num_hidden_layers": 1_000_000}, "num_hidden_layers = 1000000: must be at least 1 and at most 1,000"),
        ("bert", {"hidden_size": -12}, "hidden_size = -12: must be at least 1 and at most 65,536"),
        ("bert", {"hidden_size": "12"}, "hidden_size = '12': must be a whole number, at least 1 and at most 65,536"),
        ("bert", {"hidden_size": 12.0}, "hidden_size = 12.0: must be a whole number, at least 1 and at most 65,536"),
        ("bert", {"num_attention_heads": 5},
         "num_attention_heads = 5 does not divide hidden_size = 12; accepted: 1, 2, 3, 4, 6, 12; or give head_width"),
        ("gpt2", {"layer_norm_epsilon": "small"},
         "layer_norm_epsilon = 'small': must be a number, more than 0.0 and at most 1.0"),
        ("bart", {"max_position_embeddings": "many"},
         "max_position_embeddings = 'many': must be a whole number, at least 1 and at most 10,000,000"),
        ("marian", {"scale_embedding": "no"}, "scale_embedding = 'no': must be true or false"),
        ("t5", {"relative_attention_num_buckets": 80},
         "relative_attention_max_distance = 20 must be more than half of relative_attention_num_buckets = 80 for "
         "positions = 't5'"),
    ],
)  # fmt: skip
def test_a_config_without_a_part_or_sense(kind: str, said: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    make(tmp_path / "m", CONFIGS[kind], said)
    assert refusal(tmp_path / "m") == f"FOLDER/config.json: {sentence}"


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize(
    ("said", "named"),
    [
        ({"hidden_act": ["gelu"]}, "hidden_act"),
        ({"vocab_size": 0}, "vocab"),
        ({"layer_norm_eps": float("nan")}, "eps = nan: must be"),
    ],
)
def test_a_config_of_another_kind_is_refused_too(said: dict[str, Any], named: str, tmp_path: Path) -> None:
    """A hostile file may hold anything that JSON can; it gets a sentence, not a traceback."""
    make(tmp_path / "m", CONFIGS["bert"], said)
    assert named in refusal(tmp_path / "m")


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize(
    ("spoil", "said", "sentence"),
    [
        (lambda t: {k: v for k, v in t.items() if k != EMBEDDINGS}, {},
         "no tensor 'embeddings.word_embeddings.weight', which BertForMaskedLM needs"),
        (lambda t: {k: v for k, v in t.items() if "embeddings.LayerNorm" not in k}, {},
         "no tensor 'embeddings.LayerNorm.weight' (and 1 more), which BertForMaskedLM needs"),
        (lambda t: {**t, "adapter.weight": torch.zeros(2)}, {},
         "a tensor 'adapter.weight', for which BertForMaskedLM has no place"),
        (lambda t: {**t, "cls.predictions.bias": torch.zeros(5)}, {},
         "tensor 'cls.predictions.bias' has the shape (5,); its config.json promises (19,)"),
        (dict, {"vocab_size": 10_000_000, "hidden_size": 65_520},  # 2.6 TB
         "tensor 'embeddings.word_embeddings.weight' has the shape (19, 12); its config.json promises "
         "(10000000, 65520)"),
    ],
    ids=["one missing", "two missing", "surplus", "shape", "size"],
)  # fmt: skip
def test_tensors_that_do_not_fit(spoil: Spoil, said: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    make(tmp_path / "m", CONFIGS["bert"], said, spoil)
    assert refusal(tmp_path / "m") == f"FOLDER: {sentence}"


@pytest.mark.usefixtures("unread")
def test_two_tensors_for_one_place(tmp_path: Path) -> None:
    """A name with and without the prefix of the body: neither may win in silence."""
    twice: Spoil = lambda t: {**t, "embeddings.LayerNorm.bias": t["bert.embeddings.LayerNorm.bias"] + 1}  # noqa: E731
    make(tmp_path / "m", CONFIGS["bert"], spoil=twice)
    assert "embeddings.LayerNorm.bias" in refusal(tmp_path / "m")


def test_a_second_copy_of_a_tied_table(tmp_path: Path) -> None:
    """Files may hold it; then it must be one."""
    copy = "cls.predictions.decoder.weight"
    model = make(tmp_path / "same", CONFIGS["bert"], spoil=lambda t: {**t, copy: t[EMBEDDINGS].clone()})
    assert_same(read_model(open_folder(tmp_path / "same"))[0], model)
    make(tmp_path / "other", CONFIGS["bert"], spoil=lambda t: {**t, copy: t[EMBEDDINGS] + 1})
    pinned = f"{copy} differs from embeddings.word_embeddings.weight, but config.json says that they are one"
    assert refusal(tmp_path / "other") == f"FOLDER: {pinned}"


def test_a_trained_table_where_sinusoids_belong(tmp_path: Path) -> None:
    sentence = f"FOLDER: {SINUSOIDS} is not the table of sinusoids; a trained one is not supported"
    make(tmp_path / "m", CONFIGS["roformer"], spoil=lambda t: {**t, SINUSOIDS: t[SINUSOIDS] + 0.1})
    assert refusal(tmp_path / "m") == sentence


def test_a_table_of_sinusoids_is_measured_before_it_is_compared(tmp_path: Path) -> None:
    """A config.json of a few bytes may promise a table of any length: nothing of that size is made."""
    make(tmp_path / "m", CONFIGS["roformer"], {"max_position_embeddings": 1_000_000})
    tracemalloc.start()
    try:
        sentence, (_, peak) = refusal(tmp_path / "m"), tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 5_000_000
    assert SINUSOIDS in sentence


@pytest.mark.parametrize("declared", [["BertForMaskedLM"], ["SomethingElse"], [], None, "BertModel", 5])
def test_the_file_decides_which_class_it_is(declared: Any, tmp_path: Path) -> None:
    """bert-base-uncased declares BertForMaskedLM, and holds a pooler and a next-sentence head as well."""
    config = CONFIGS["bert"].replace(head="pretraining", pooler="tanh")
    model = make(tmp_path / "m", config, {"architectures": declared})
    again, found = read_model(open_folder(tmp_path / "m"))
    assert (found.head, found.pooler) == ("pretraining", "tanh")
    assert_same(again, model)


def renamed(*changes: tuple[str, str]) -> Spoil:
    def spoil(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        for old, new in changes:
            tensors = {name.replace(old, new): tensor for name, tensor in tensors.items()}
        return tensors

    return spoil


@pytest.mark.parametrize(
    ("kind", "spoil"),
    [
        ("gpt2", renamed(("transformer.", ""))),  # as GPT-2 is on the hub
        ("llama", renamed(("model.", ""))),
        ("bert", renamed(("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta"))),
        ("bert", lambda t: {**t, "bert.embeddings.position_ids": torch.arange(29)[None]}),
        ("gpt2", lambda t: {**t, "transformer.h.0.attn.bias": torch.ones(1, 1, 29, 29).tril(),
                            "transformer.h.0.attn.masked_bias": torch.tensor(-1e4)}),
        ("llama", lambda t: {**t, "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(5)}),
        ("t5", lambda t: {**t, "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight":
                          torch.ones(8, 3)}),
        ("t5", lambda t: {**t, "encoder.embed_tokens.weight": t["shared.weight"].clone()}),
    ],
    ids=["no prefix", "no prefix", "gamma and beta", "position_ids", "masks", "angles", "unused table", "copy"],
)  # fmt: skip
def test_names_of_older_files(kind: str, spoil: Spoil, tmp_path: Path) -> None:
    model = make(tmp_path / "m", CONFIGS[kind], spoil=spoil)
    assert_same(read_model(open_folder(tmp_path / "m"))[0], model)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("kind", ["bert", "gpt2", "bart"])
def test_other_precisions_are_read_as_float32(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = make(tmp_path / "m", CONFIGS[kind], spoil=lambda t: {k: v.to(dtype) for k, v in t.items()})
    again, _ = read_model(open_folder(tmp_path / "m"))
    assert {weight.dtype for weight in again.parameters()} == {torch.float32}
    assert_same(again, model.to(dtype).float())


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_model_does_not_depend_on_its_file(kind: str, tmp_path: Path) -> None:
    """safetensors maps files: a weight that was not copied would change with them."""
    model, file = make(tmp_path / "m", CONFIGS[kind]), tmp_path / "m" / "model.safetensors"
    again, _ = read_model(open_folder(tmp_path / "m"))
    size = file.stat().st_size
    with file.open("r+b") as opened:
        opened.write(bytes(size))
    assert_same(again, model)


def test_a_model_in_several_files(tmp_path: Path) -> None:
    """Queries, keys and values of one layer may lie in different files."""
    model, folder = make(tmp_path / "m", CONFIGS["llama"]), tmp_path / "m"
    tensors = load_file(folder / "model.safetensors")
    placed = {name: f"model-0000{1 + i % 3}-of-00003.safetensors" for i, name in enumerate(sorted(tensors))}
    for file in set(placed.values()):
        save_file({name: tensors[name].clone() for name in placed if placed[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    (folder / "model.safetensors").unlink()
    assert_same(read_model(open_folder(folder))[0], model)


@pytest.mark.parametrize(
    ("kind", "change", "nearest"),
    [
        ("bert", {"positions": "alibi"}, "BertForMaskedLM, which needs positions = 'learned' (here 'alibi')"),
        ("bert", {"positions": "relative"}, "BertForMaskedLM, which needs positions = 'learned' (here 'relative')"),
        ("bert", {"norm_place": "pre"},
         "BertForMaskedLM, which needs norm_place = 'post' (here 'pre'), final_norm = False (here True)"),
        ("bert", {"norm": "batch"}, "BertForMaskedLM, which needs norm = 'layer' (here 'batch')"),
        ("bert", {"score": "additive"}, "BertForMaskedLM, which needs score = 'dot' (here 'additive')"),
        ("bert", {"scale": "full"}, "BertForMaskedLM, which needs scale = 'sqrt' (here 'full')"),
        ("bert", {"residual": False}, "BertForMaskedLM, which needs residual = True (here False)"),
        ("bert", {"head_width": 5}, "BertForMaskedLM, which needs head_width = 4 (here 5)"),
        ("bert", {"activation": "swiglu"}, "BertForMaskedLM, which needs activation = relu, gelu, gelu_tanh, silu, "
         "sigmoid, tanh, identity (here 'swiglu')"),
        ("bert", {"head": "classification", "pooler": "tanh", "pool": "mean"},
         "BertForSequenceClassification, which needs pool = 'first' (here 'mean')"),
        ("gpt2", {"positions": "alibi"}, "GPT2LMHeadModel, which needs positions = 'learned' (here 'alibi')"),
        ("gpt2", {"tied": "all"}, "GPT2LMHeadModel, which needs tied = output, none (here 'all')"),
        ("llama", {"bias": True}, "LlamaForCausalLM, which needs bias = False (here True)"),
        ("marian", {"positions": "rotary"}, "MarianMTModel, which needs positions = 'sinusoidal' (here 'rotary')"),
        ("marian", {"norm_eps": 1e-6}, "MarianMTModel, which needs norm_eps = 1e-05 (here 1e-06)"),
    ],
)  # fmt: skip
def test_a_model_that_cannot_be_exported(kind: str, change: dict[str, Any], nearest: str) -> None:
    config = CONFIGS[kind].replace(**change)
    with pytest.raises(UserError) as caught:
        write_model(lay_out(config), config)
    assert str(caught.value) == f"no Hugging Face architecture has these parts; the nearest is {nearest}"


def test_what_we_have_not_is_exported_as_zeros(tmp_path: Path) -> None:
    """BERT has a vector for each segment and a bias for each token; zeros change no number."""
    config = CONFIGS["bert"].replace(segments=0, output_bias=False, norm_eps=1e-5)
    model, tokens = make(tmp_path / "m", config).eval(), torch.arange(19)[None]
    again, found = read_model(open_folder(tmp_path / "m"))
    assert (found.segments, found.output_bias) == (1, True)
    assert torch.equal(again.eval().logits(again(tokens)), model.logits(model(tokens)))


EXPORTED_AS = {
    "bart-base": "BartForConditionalGeneration", "bert-base": "BertModel", "bert-mini": "BertModel",
    "bert-tiny": "BertModel", "gpt-nano": "GPT2LMHeadModel", "gpt2": "GPT2LMHeadModel",
    "llama2-7b": "LlamaForCausalLM", "marian-base": "MarianMTModel", "small-decoder": "LlamaForCausalLM",
    "small-encoder": "RoFormerModel", "small-translator": "MarianMTModel", "t5-small": "T5ForConditionalGeneration",
    "vaswani-base": "MarianMTModel", "vaswani-big": "MarianMTModel",
}  # fmt: skip


@pytest.mark.parametrize("name", presets.names())
def test_every_preset_is_exported_and_read_again(name: str, tmp_path: Path) -> None:
    """At tiny sizes: the architecture depends on the parts alone."""
    sizes = {"vocabulary": 19, **SQUARE, "heads": 3, "layers": 2, "feedforward": 17, "context": 29}
    config = presets.load(name).replace(**sizes)
    model = make(tmp_path / "m", config)
    again, found = read_model(open_folder(tmp_path / "m"))
    assert open_folder(tmp_path / "m").config["architectures"] == [EXPORTED_AS[name]]
    ours, theirs = model.state_dict(), again.state_dict()
    assert {key for key in theirs if key not in ours} <= {"words.bias"}
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    apart = {"output_bias", "context"}  # a bias of zeros is added; T5 has no context
    assert found.resolve().model_dump(exclude=apart) == config.resolve().model_dump(exclude=apart)


def test_names_of_labels_and_tokens_are_carried_through() -> None:
    config = CONFIGS["bert"].replace(head="classification", classes=3, pooler="tanh")
    plain = write_model(lay_out(config), config).config
    assert plain["id2label"] == {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}
    assert plain["label2id"] == {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2}
    assert plain["problem_type"] == "single_label_classification"
    carried = {"id2label": {"0": "bad", "1": "so-so", "2": "good"}, "pad_token_id": 4, "vocab_size": 1, "mine": [1]}
    config_json = write_model(lay_out(config), config, carried).config
    assert config_json["id2label"] == carried["id2label"]
    assert config_json["label2id"] == {"bad": 0, "so-so": 1, "good": 2}
    assert (config_json["pad_token_id"], config_json["mine"]) == (4, [1])
    assert config_json["vocab_size"] == 19, "what the model knows itself is not taken from others"
    regression = config.replace(head="regression")
    assert write_model(lay_out(regression), regression).config["problem_type"] == "regression"


def test_what_is_carried_is_not_changed() -> None:
    carried = {"rope_parameters": {"rope_theta": 7.0}}
    written = write_model(lay_out(CONFIGS["llama"]), CONFIGS["llama"], carried)
    assert written.config["rope_parameters"]["rope_theta"] == 10_000.0
    assert carried == {"rope_parameters": {"rope_theta": 7.0}}


def test_more_layers_than_tensors_is_said_at_once(tmp_path: Path) -> None:
    make(tmp_path / "m", CONFIGS["bert"], {"num_hidden_layers": 1000})
    assert refusal(tmp_path / "m").startswith("FOLDER: config.json promises 1000 layers, but there are ")
