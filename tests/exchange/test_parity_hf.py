"""The same numbers as Hugging Face `transformers`, in float64: every architecture, every head, both ways.

transformers is code we did not write and the world's weights are made for: agreeing with it to 1e-9, outputs and
gradients, shows that each weight has its place and each setting its meaning. Sizes are tiny and differ from each other,
weights are redrawn large (a norm of ones or a bias of zeros would hide a mix-up), batches are ragged. Files hold
float32, so models are made in float32 and computed in float64.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from qkv.config.recipe import ModelConfig
from qkv.exchange.folder import open_folder, write_folder
from qkv.exchange.hf import ARCHITECTURES, read_model, write_model
from qkv.model import Decoder, EncoderDecoder, Model
from tests.support.tiny_models import V, build, normal

os.environ["HF_HUB_OFFLINE"] = "1"  # before the import: nothing here may ask the network
import transformers

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

Settings = dict[str, Any]
D, H, F, CONTEXT, LENGTH = 12, 3, 17, 31, 29  # LENGTH goes beyond the 20 tokens that one T5 here can tell apart
_BERT: Settings = {
    "vocab_size": V, "hidden_size": D, "num_hidden_layers": 2, "num_attention_heads": H, "intermediate_size": F,
    "max_position_embeddings": CONTEXT, "pad_token_id": 0,
}  # fmt: skip
_BART: Settings = {
    "vocab_size": V, "d_model": D, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": H,
    "decoder_attention_heads": H, "encoder_ffn_dim": F, "decoder_ffn_dim": F, "max_position_embeddings": CONTEXT,
    "pad_token_id": 0, "decoder_start_token_id": 0, "bos_token_id": 1, "eos_token_id": 1, "forced_eos_token_id": None,
}  # fmt: skip
SIZES: dict[str, Settings] = {
    "Bert": _BERT,
    "RoFormer": {**_BERT, "embedding_size": D},
    "DistilBert": {
        "vocab_size": V, "dim": D, "n_layers": 2, "n_heads": H, "hidden_dim": F, "max_position_embeddings": CONTEXT,
    },
    "GPT2": {
        "vocab_size": V, "n_embd": D, "n_layer": 2, "n_head": H, "n_inner": F, "n_positions": CONTEXT,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1,
    },
    "Llama": {
        **_BERT, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 10, "bos_token_id": 1,
        "eos_token_id": 1,
    },
    "Marian": _BART,
    "Pegasus": _BART,
    "Bart": _BART,
    "T5": {
        "vocab_size": V, "d_model": D, "d_kv": 5, "num_layers": 2, "num_decoder_layers": 3, "num_heads": H, "d_ff": F,
    },
}  # fmt: skip
UNTIED: Settings = {"tie_word_embeddings": False}
OWN_OUTPUT: Settings = {"own_output": True}  # as in T5 1.1: a table for both inputs, another for the output
TWO_VOCABULARIES: Settings = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 23}
SCALED: Settings = {"scale_embedding": True, "activation_function": "relu", "encoder_layers": 3, "decoder_layers": 1}
UNREAD = {"model.shared.weight", "cls.predictions.bias"}  # where nothing is tied, their classes keep them for nothing
TRANSLATORS = ("MarianMTModel", "PegasusForConditionalGeneration", "BartForConditionalGeneration")
CLASSES = sorted({variant.name for architecture in ARCHITECTURES for variant in architecture.variants})
CASES: list[tuple[str, Settings]] = [
    *((name, {"num_labels": 3} if "Classification" in name else {}) for name in CLASSES),
    *((name, {"num_labels": 1}) for name in CLASSES if "Classification" in name),
    ("BertModel", {"add_pooling_layer": False}),
    ("BertForMaskedLM", {"layer_norm_eps": 1e-3, "hidden_act": "relu", "type_vocab_size": 3}),
    ("BertForMaskedLM", {**UNTIED, "hidden_act": "silu"}),
    ("BertForPreTraining", {**UNTIED, "hidden_act": "gelu_new"}),
    ("RoFormerForMaskedLM", {**UNTIED, "layer_norm_eps": 1e-3, "hidden_act": "gelu_new", "type_vocab_size": 3}),
    ("RoFormerForSequenceClassification", {"hidden_act": "relu", "num_labels": 3}),
    ("DistilBertForMaskedLM", {**UNTIED, "activation": "relu"}),
    ("GPT2LMHeadModel", {**UNTIED, "n_inner": None, "activation_function": "relu"}),
    ("GPT2LMHeadModel", {"layer_norm_epsilon": 1e-3, "activation_function": "silu"}),
    ("LlamaForCausalLM", {"tie_word_embeddings": True, "rms_norm_eps": 1e-3, "rope_theta": 500_000.0}),
    ("LlamaForCausalLM", {"num_key_value_heads": 4, "head_dim": None, "hidden_size": 24}),
    *((name, UNTIED) for name in TRANSLATORS[1:]),  # Marian says it by two vocabularies, below
    *((name, SCALED) for name in TRANSLATORS),
    ("MarianMTModel", {**TWO_VOCABULARIES, "activation_function": "silu"}),
    ("MarianMTModel", {**TWO_VOCABULARIES, **UNTIED, "scale_embedding": True}),
    ("MarianModel", TWO_VOCABULARIES),
    ("T5ForConditionalGeneration", {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 20}),
    ("T5ForConditionalGeneration", {"scale_decoder_outputs": False, "layer_norm_epsilon": 1e-3, "d_kv": 7}),
    ("T5ForConditionalGeneration", {**OWN_OUTPUT, "scale_decoder_outputs": False, "num_decoder_layers": 1}),
    ("T5ForConditionalGeneration", {**OWN_OUTPUT, "feed_forward_proj": "gelu_new"}),
]


def kind_of(name: str) -> str:
    return next(kind for kind in SIZES if name.startswith(kind))


def each(chosen: list[tuple[Any, ...]]) -> pytest.MarkDecorator:
    """A test for every case, with an id that tells its settings."""
    ids = ["-".join([case[0], *case[2:], *(f"{key}={value}" for key, value in case[1].items())]) for case in chosen]
    return pytest.mark.parametrize(("name", "settings", "side")[: len(chosen[0])], chosen, ids=ids)


CAUSAL = [(name, settings) for name, settings in CASES if kind_of(name) in ("GPT2", "Llama")]
WRITERS = CAUSAL + [case for case in CASES if kind_of(case[0]) in ("Marian", "Pegasus", "Bart", "T5")]
LEFT = [(*case, "left") for case in CAUSAL]  # the other classes have no way to say where a padded text starts


@pytest.fixture(autouse=True, scope="module")
def _in_float64() -> Iterator[None]:
    """Three of their parts compute in float32 whatever the model is in, which alone would be 1e-7 away: the norms of T5
    and of Llama, and Llama's angles. Here they compute in the model's own precision."""

    def norm(self: Any, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))

    def angles(self: Any, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        width, base = self.config.head_dim, self.config.rope_parameters["rope_theta"]
        turns = position_ids[..., None] * base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        both = torch.cat([turns, turns], -1)
        return both.cos().to(x.dtype), both.sin().to(x.dtype)

    t5, llama = transformers.models.t5.modeling_t5, transformers.models.llama.modeling_llama
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(t5.T5LayerNorm, "forward", norm)
        patch.setattr(llama.LlamaRMSNorm, "forward", norm)
        patch.setattr(llama.LlamaRotaryEmbedding, "forward", angles)
        yield


def foreign(name: str, settings: Settings) -> Any:
    """One of their models in float32 with every weight redrawn."""
    settings = {**SIZES[kind_of(name)], **settings}
    arguments = {key: settings.pop(key) for key in ("add_pooling_layer",) if key in settings}
    own_output = settings.pop("own_output", False)
    made = getattr(transformers, name)
    model = made(made.config_class(**settings), **arguments).eval()
    if own_output:  # the constructor would not take it
        model.config.tie_word_embeddings = False
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight_name, weight in [*model.named_parameters(), *model.named_buffers()]:
            noise = torch.randn(weight.shape, generator=generator)
            if weight_name.endswith("relative_attention_bias.weight"):
                weight.copy_(noise)
            elif weight.requires_grad and weight.ndim == 2:
                weight.copy_(0.3 * noise)
            elif weight.requires_grad or weight_name == "final_logits_bias":
                weight.copy_(0.1 * noise + weight_name.endswith("weight"))
    return model


def double(model: Any) -> Any:
    """Their model in float64. Marian, Pegasus and RoFormer hold their sinusoids as weights, rounded to float32: these
    are computed anew."""
    model = model.double()
    for module in model.modules():
        if "Sinusoidal" in type(module).__name__:
            count, width = module.weight.shape
            i = torch.arange((width + 1) // 2, dtype=torch.float64)
            waves = torch.arange(count)[:, None] / 10_000 ** (2 * i / width)
            module.weight.data = torch.cat([waves.sin(), waves[:, : width // 2].cos()], 1)
    return model


@dataclass(frozen=True)
class Batch:
    """Ragged rows of tokens; for an encoder-decoder these are the target, and there is a source too."""

    tokens: Tensor
    keep: Tensor
    segments: Tensor | None = None
    source: Tensor | None = None
    source_keep: Tensor | None = None


def ragged(length: int, vocabulary: int, side: str, seed: int) -> tuple[Tensor, Tensor]:
    """Three rows, of all, half and one of `length` real tokens, padded with 0 on one side. Their embeddings send no
    gradient to the padding id, so it is no real token."""
    keep = torch.arange(length) < torch.tensor([[length], [length // 2], [1]])
    keep = keep if side == "right" else keep.flip(1)
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, vocabulary, keep.shape, generator=generator) * keep, keep


def batch_for(config: ModelConfig, side: str = "right") -> Batch:
    tokens, keep = ragged(LENGTH, config.resolve().target_vocabulary or config.vocabulary, side, seed=6)
    if config.family == "encoder-decoder":
        return Batch(tokens, keep, None, *ragged(LENGTH - 2, config.vocabulary, "right", seed=7))
    return Batch(tokens, keep, torch.arange(LENGTH).expand_as(tokens) % config.segments if config.segments else None)


def their_answers(model: Any, batch: Batch) -> list[Tensor]:
    """All that their model says: about each real token, then about the text."""
    given: Settings = {"input_ids": batch.tokens, "attention_mask": batch.keep.long()}
    if batch.source is not None and batch.source_keep is not None:
        given = {f"decoder_{key}": value for key, value in given.items()}
        given |= {"input_ids": batch.source, "attention_mask": batch.source_keep.long()}
    elif kind_of(type(model).__name__) in ("GPT2", "Llama"):
        given["position_ids"] = (batch.keep.cumsum(1) - 1).clamp(min=0)
    elif batch.segments is not None:
        given["token_type_ids"] = batch.segments
    answer = model(**given)
    names = ("last_hidden_state", "prediction_logits", "logits", "pooler_output", "seq_relationship_logits")
    found = [answer[name] for name in names if answer.get(name) is not None]
    return [value[batch.keep] if value.ndim == 3 else value for value in found]


def hidden_of(model: Model, batch: Batch) -> Tensor:
    """Our last hidden states in one pass."""
    if isinstance(model, EncoderDecoder):
        return model(cast(Tensor, batch.source), batch.tokens, batch.source_keep, batch.keep)
    if isinstance(model, Decoder):
        return model(batch.tokens, batch.keep)
    return model(batch.tokens, batch.keep, segments_BL=batch.segments)


def our_answers(model: Model, config: ModelConfig, hidden: Tensor, keep: Tensor) -> list[Tensor]:
    answers = [hidden[keep]] if config.head == "none" else []
    answers += [] if model.words is None else [model.logits(hidden[keep])]
    return answers + ([] if model.text is None else [model.text(hidden, keep)])


def assert_close(ours: list[Tensor], theirs: list[Tensor]) -> None:
    for our, their in zip(ours, theirs, strict=True):
        assert their.std() > 0.01, "an answer that hardly varies proves nothing"
        torch.testing.assert_close(our, their, rtol=0, atol=1e-9)


def gradients(answers: list[Tensor], model: torch.nn.Module) -> dict[str, Tensor]:
    """Of a random linear function of the answers, by every weight that has a part in them."""
    total = torch.stack([(answer * normal(*answer.shape, seed=8)).sum() for answer in answers]).sum()
    weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    found = torch.autograd.grad(total, list(weights.values()), allow_unused=True)
    return {name: gradient for name, gradient in zip(weights, found, strict=True) if gradient is not None}


def imported(theirs: Any, path: Path) -> tuple[Model, ModelConfig]:
    theirs.save_pretrained(path)
    model, config = read_model(open_folder(path))
    return model.eval(), config


def token_ids(theirs: Any) -> Settings:
    """What a model does not know about itself and its tokenizer does."""
    return {key: value for key, value in theirs.config.to_dict().items() if key.endswith("_token_id")}


@each([*((*case, "right") for case in CASES), *LEFT])
def test_theirs_in_ours(name: str, settings: Settings, side: str, tmp_path: Path) -> None:
    """Answers within 1e-9; gradients of a random function of them, by every weight, within 1e-8. Our gradients, put in
    the place of the weights, leave by the same rules, so that they meet theirs by name."""
    theirs = foreign(name, settings)
    ours, config = imported(theirs, tmp_path)
    ours, theirs, batch = ours.double(), double(theirs), batch_for(config, side)
    answers, expected = our_answers(ours, config, hidden_of(ours, batch), batch.keep), their_answers(theirs, batch)
    assert_close(answers, expected)
    ours.load_state_dict(gradients(answers, ours))
    found, wanted = write_model(ours, config).tensors, gradients(expected, theirs)
    untrained = ("final_logits_bias", "embed_positions.weight", *UNREAD)
    assert [name for name in found.keys() - wanted.keys() if not name.endswith(untrained)] == []
    for name, gradient in wanted.items():
        nothing = name.endswith(("key.bias", "k_lin.bias", "k_proj.bias"))  # a softmax does not see it, but for rotary
        assert nothing or gradient.abs().max() > 1e-6, f"{name}: a gradient of nothing proves nothing"
        torch.testing.assert_close(found[name], gradient, rtol=0, atol=1e-8)


@each([*((*case, "right") for case in WRITERS), *LEFT])
def test_steps_with_a_cache_are_their_full_pass(name: str, settings: Settings, side: str, tmp_path: Path) -> None:
    """Three tokens at once, as a prompt is read, then one at a time."""
    theirs = foreign(name, settings)
    ours, config = imported(theirs, tmp_path)
    ours, batch = ours.double(), batch_for(config, side)
    if isinstance(ours, EncoderDecoder):
        cache = ours.start(ours.encode(cast(Tensor, batch.source), batch.source_keep), batch.source_keep)
    else:
        cache = cast(Decoder, ours).start(len(batch.tokens))
    pieces, sizes = [], [3, *(LENGTH - 3) * [1]]
    for part in torch.stack([batch.tokens, batch.keep]).split_with_sizes(sizes, 2):
        piece, cache = cast(Decoder | EncoderDecoder, ours).step(part[0], cache, part[1].bool())
        pieces.append(piece)
    answers = our_answers(ours, config, torch.cat(pieces, 1), batch.keep)
    assert_close(answers, their_answers(double(theirs), batch))


@each(CASES)
def test_a_file_comes_back_bit_by_bit(name: str, settings: Settings, tmp_path: Path) -> None:
    """Read and written again: the same class, names, tensors, and no key of config.json with another value."""
    theirs = foreign(name, settings)
    model, config = imported(theirs, tmp_path)
    written, stored = write_model(model, config, token_ids(theirs)), load_file(tmp_path / "model.safetensors")
    assert written.name == name
    assert written.tensors.keys() == stored.keys()
    untied = settings.get("tie_word_embeddings") is False
    changed = {name for name, tensor in stored.items() if not torch.equal(written.tensors[name], tensor)}
    assert changed <= (UNREAD if untied else set())
    said = json.loads((tmp_path / "config.json").read_text())
    implied = {"is_encoder_decoder": False, "position_embedding_type": "absolute", "normalize_before": False,
               "rope_scaling": None, "is_causal": True, **token_ids(theirs)}  # fmt: skip
    if name.startswith("T5"):
        implied.setdefault("decoder_start_token_id", 0)
    if "num_labels" in settings:
        regression = settings["num_labels"] == 1
        implied["problem_type"] = "regression" if regression else "single_label_classification"
        assert (config.head, config.classes) == (("regression", 2) if regression else ("classification", 3))
    if settings.get("n_inner", F) is None:
        said["n_inner"] = 4 * D
    assert {**implied, **said} == {**implied, **said, **written.config}


def exported(model: Model, config: ModelConfig, carried: Settings, path: Path, **arguments: Any) -> Any:
    """Our model as their loader gives it back from the folder we write, nothing missing and nothing left over."""
    written = write_model(model, config, carried)
    write_folder(path, config=written.config, generation={}, tensors=written.tensors, files={})
    theirs, report = getattr(transformers, written.name).from_pretrained(path, output_loading_info=True, **arguments)
    assert {what: list(names) for what, names in report.items() if names} == {}
    return theirs.eval()


def check_export(config: ModelConfig, name: str, carried: Settings, path: Path, **arguments: Any) -> None:
    ours, batch = build(config, seed=9).float(), batch_for(config)
    theirs = exported(ours, config, carried, path, **arguments)
    assert type(theirs).__name__ == name
    ours = ours.double()
    answers = our_answers(ours, config, hidden_of(ours, batch), batch.keep)
    assert_close(answers, their_answers(double(theirs), batch))


@each(CASES)
def test_ours_in_theirs(name: str, settings: Settings, tmp_path: Path) -> None:
    theirs = foreign(name, settings)
    _, config = imported(theirs, tmp_path / "theirs")
    arguments = {key: value for key, value in settings.items() if key == "add_pooling_layer"}
    check_export(config, name, token_ids(theirs), tmp_path / "ours", **arguments)


@each([
    ("BertForMaskedLM", {"segments": 0, "output_bias": False, "norm_eps": 1e-5}),
    ("BertForPreTraining", {"segments": 0, "output_bias": False}),
    ("RoFormerForMaskedLM", {"segments": 0, "output_bias": False}),
    ("DistilBertForMaskedLM", {"output_bias": False}),
    *((name, {"output_bias": False}) for name in TRANSLATORS),
    *((name, {"tied": "inputs"}) for name in (*TRANSLATORS, "T5ForConditionalGeneration")),
])  # fmt: skip
def test_ours_with_less_than_theirs(name: str, settings: Settings, tmp_path: Path) -> None:
    """What we have not, they have as zeros: a vector for segment 0, a bias for each token. And one table for both
    inputs beside another for the output, which their classes do not make by themselves."""
    theirs = foreign(name, {})
    _, config = imported(theirs, tmp_path / "theirs")
    check_export(config.replace(**settings), name, token_ids(theirs), tmp_path / "ours")


@each([
    ("LlamaForCausalLM", {"rope_theta": 500_000.0}),
    ("T5ForConditionalGeneration", {}),
    ("T5ForConditionalGeneration", {**OWN_OUTPUT, "scale_decoder_outputs": False}),
])  # fmt: skip
def test_settings_as_older_files_spell_them(name: str, settings: Settings, tmp_path: Path) -> None:
    """The base of rotary positions had no table of its own, and T5's output was scaled where its tables were one."""
    theirs = foreign(name, settings)
    _, config = imported(theirs, tmp_path)
    file = tmp_path / "config.json"
    said = json.loads(file.read_text())
    modern = {key: said.pop(key) for key in ("rope_parameters", "scale_decoder_outputs") if key in said}
    older = {"rope_theta": modern["rope_parameters"]["rope_theta"]} if "rope_parameters" in modern else {}
    file.write_text(json.dumps({**said, **older}))
    again, found = read_model(open_folder(tmp_path))
    assert modern
    assert found == config
    batch, ours = batch_for(config), again.double()
    answers = our_answers(ours, config, hidden_of(ours, batch), batch.keep)
    assert_close(answers, their_answers(double(type(theirs).from_pretrained(tmp_path)), batch))
