"""Hugging Face models in and out, by the tables of `encoders`, `decoders` and `encoder_decoders`. Nothing is computed:
weights are only renamed, stacked, split or reordered, so a model that is read and written again is equal to the bit.

Reading compares names and shapes with what the config promises before any weight is read.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from qkv.config.recipe import TEXT_HEADS, ModelConfig
from qkv.exchange.architecture import ACTIVATION_NAMES, Architecture, Variant, WeightRule, sinusoid
from qkv.exchange.decoders import DECODERS
from qkv.exchange.encoder_decoders import ENCODER_DECODERS
from qkv.exchange.encoders import ENCODERS
from qkv.exchange.folder import Folder, ModelFiles
from qkv.exchange.native import KIND, read_native, write_native
from qkv.model.build import lay_out
from qkv.model.transformer import Model
from qkv.schema import UserError, listed

ARCHITECTURES = (*ENCODERS, *DECODERS, *ENCODER_DECODERS)
# What older files hold beside weights: counters and masks, and a table of T5's that nothing reads.
LEFTOVERS = re.compile(
    r"(position_ids|\.attn\.(masked_)?bias|rotary_emb\.inv_freq|EncDecAttention\.relative_attention_bias\.weight)$"
)


POOLERS = ("tanh", "gelu", "relu", "none")


class _NoArchitecture(UserError):
    """No foreign architecture has these parts."""

    def __init__(self, nearest: str) -> None:
        super().__init__(f"no Hugging Face architecture has these parts; {nearest}")
        self.nearest = nearest


def read_model(folder: Folder) -> tuple[Model, ModelConfig]:
    """The model in a Hugging Face folder or in one of our own, with its weights in float32."""
    if folder.config.get("model_type") == KIND:
        return read_native(folder)
    architecture = _architecture(folder)
    problems = []
    for variant in _likeliest_first(folder, architecture):
        config = _read_config(folder, architecture, variant)
        if config.layers > len(folder.shapes):
            promised = f"config.json promises {config.layers} layers"
            raise UserError(f"{folder.path}: {promised}, but there are {len(folder.shapes)} tensors in all")
        model = lay_out(config)
        problem = _misfit(folder, architecture, variant, config, model)
        if problem is None:
            _fill(folder, architecture, variant, config, model)
            return model, config
        problems.append(problem)
    raise UserError(f"{folder.path}: {problems[0]}")


def is_exportable(config: ModelConfig) -> bool:
    """Whether some foreign architecture has these parts."""
    return export_problem(config) is None


def export_problem(config: ModelConfig) -> str | None:
    """The parts that no foreign architecture has, by the nearest one; None where one has them all."""
    try:
        _architecture_of(config)
    except _NoArchitecture as error:
        return error.nearest
    return None


def exportable_pooler(config: ModelConfig) -> str:
    """The pooler with which these parts are a Hugging Face architecture: their own if it is, and where none is. BERT's
    classifier has tanh, RoFormer's the activation of its layers."""
    own = config.resolve().pooler
    return next((one for one in (own, *POOLERS) if is_exportable(config.replace(pooler=one))), own)


def as_files(model: Model, config: ModelConfig, carried: Mapping[str, Any]) -> ModelFiles:
    """A model as it is written: in a Hugging Face architecture if its parts make one, else in our own."""
    return (write_model if is_exportable(config) else write_native)(model, config, carried)


def write_model(model: Model, config: ModelConfig, carried: Mapping[str, Any] | None = None) -> ModelFiles:
    """A model in the Hugging Face architecture that its parts make. `carried` are further keys for config.json (token
    ids, label names). Where no architecture has these parts, the error names the part that prevents it."""
    architecture, variant = _architecture_of(config)
    prefix = "" if variant.head == "none" else architecture.body
    theirs = _with_their_weights(config, architecture)
    own, tensors = model.state_dict(), {}
    for name, weight in lay_out(theirs).state_dict().items():
        rule, foreign = _rule(name, architecture, variant)
        ours = own[name].detach() if name in own else _added(name, weight, own)
        for their_name, tensor in zip(foreign, rule.write(ours, theirs.resolve()), strict=True):
            tensors[their_name.replace("@", prefix)] = tensor.contiguous()
    tables = {} if variant.name in architecture.recomputed_by else architecture.sinusoids
    computed = {name.replace("@", prefix): sinusoid(*size(theirs.resolve())) for name, size in tables.items()}
    tensors |= computed
    for idle, name in architecture.idle.items():
        if name.replace("@", prefix) in tensors:
            tensors[idle.replace("@", prefix)] = tensors[name.replace("@", prefix)].clone()
    said = _write_config(theirs, architecture, variant, carried or {})
    return ModelFiles(variant.name, said, tensors, frozenset(computed))


def _architecture(folder: Folder) -> Architecture:
    kind = folder.config.get("model_type")
    known = [a for a in ARCHITECTURES if a.kind == kind]
    if not known:
        kinds = listed(sorted({a.kind for a in ARCHITECTURES}))
        raise UserError(f"{folder.path / 'config.json'}: model_type = {kind!r} is unknown here; accepted: {kinds}")
    for architecture in known:
        for key, accepted in architecture.demands.items():
            found = _value(folder.config, architecture, key)
            if found != accepted:
                where = folder.path / "config.json"
                raise UserError(f"{where}: {key} = {found!r} is not supported by qkv; accepted: {accepted!r}")
    fitting = [a for a in known if _tied(folder.config, a)]
    if not fitting:
        raise UserError(f"{folder.path / 'config.json'}: the way its embeddings are tied is not supported by qkv")
    return fitting[0]


def _likeliest_first(folder: Folder, architecture: Architecture) -> list[Variant]:
    """The classes a folder may hold: the one it declares, then the others."""
    declared = folder.config.get("architectures")
    known = list(dict.fromkeys(variant.name for variant in architecture.variants))
    for name in declared if isinstance(declared, list) else []:
        if isinstance(name, str) and name.startswith(known[0].removesuffix("Model")) and name not in known:
            where = folder.path / "config.json"
            raise UserError(f"{where}: architectures = {name[:60]!r} is not read here; accepted: {listed(known)}")
    return sorted(architecture.variants, key=lambda variant: declared != [variant.name])


def _tied(their_config: Mapping[str, Any], architecture: Architecture) -> str | None:
    """Our name for how their embeddings are tied."""
    for tied, said in architecture.tied.items():
        if all(_value(their_config, architecture, key) == value for key, value in said.items()):
            return tied
    return None


def _read_config(folder: Folder, architecture: Architecture, variant: Variant) -> ModelConfig:
    """Our config for theirs, checked as strictly as a user's own."""
    where = str(folder.path / "config.json")
    table = {**architecture.parts, "tied": _tied(folder.config, architecture), "head": variant.head}
    for ours, theirs in architecture.keys.items():
        values = [_value(folder.config, architecture, key) for key in theirs]
        present = [value for value in values if value is not None]
        if any(value != present[0] for value in present[1:]):
            found = listed(f"{key} = {value}" for key, value in zip(theirs, values, strict=True))
            raise UserError(f"{where}: {found}; qkv has one value for both")
        if present:
            table[ours] = present[0]
    if "context" in table and isinstance(table["context"], int):
        table["context"] += architecture.context_offset
    for key in architecture.activation:
        name = _value(folder.config, architecture, key)
        if not isinstance(name, str) or name not in ACTIVATION_NAMES:
            raise UserError(f"{where}: {key} = {name!r} is not supported by qkv; accepted: {listed(ACTIVATION_NAMES)}")
        table["activation"] = ACTIVATION_NAMES[name]
    table["pooler"] = table["activation"] if variant.pooler == "activation" else variant.pooler
    if "text.output" in variant.weights and variant.head == "classification":
        table["classes"] = _classes(folder, variant)
    return _checked(table, architecture, where)


def _checked(table: Mapping[str, Any], architecture: Architecture, where: str) -> ModelConfig:
    """A config from plain values. An error names the keys of the file, not ours."""
    try:
        config = ModelConfig.read(table, where)
        if not config.vocabulary:
            raise UserError(f"{where}: vocabulary = 0: must be at least 1")
    except UserError as error:
        sentence = str(error)
        for ours, theirs in architecture.keys.items():
            sentence = re.sub(rf"\b{ours}\b(?= =)", theirs[0], sentence)
        raise UserError(sentence) from None
    return config


def _classes(folder: Folder, variant: Variant) -> int:
    """How many classes there are: as many as their head has rows. Only one of them can be right at a time."""
    shape = folder.shapes.get(variant.weights["text.output"].names[0] + ".weight", ())
    kind = folder.config.get("problem_type")
    if kind == "multi_label_classification" or (kind == "regression" and shape[:1] > (1,)):
        found = f"problem_type = {kind!r} with {shape[0] if shape else 0} outputs is not supported by qkv"
        wanted = "single_label_classification, or regression with one output"
        raise UserError(f"{folder.path / 'config.json'}: {found}; accepted: {wanted}")
    return shape[0] if shape else 2


def _value(their_config: Mapping[str, Any], architecture: Architecture, key: str) -> Any:
    """Their value of a key, dotted into inner objects, or what they mean where they say nothing."""
    found: Any = their_config
    for name in key.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    if found is None and key.startswith("rope_parameters."):
        found = their_config.get(key.partition(".")[2])  # where older files have it
    if found is None and key == "scale_decoder_outputs":
        found = _value(their_config, architecture, "tie_word_embeddings")  # what it was before it had a name
    return architecture.defaults.get(key) if found is None else found


def _rule(name: str, architecture: Architecture, variant: Variant) -> tuple[WeightRule, list[str]]:
    """The rule for one of our weights and its foreign names, written out but for the prefix."""
    layer = re.search(r"\.blocks\.(\d+)\.", name)
    general = re.sub(r"\.blocks\.\d+\.", ".blocks.{i}.", name)
    stem, _, leaf = general.rpartition(".")
    table = {**architecture.weights, **variant.weights}
    rule, ending = (table[general], "") if general in table else (table[stem], f".{leaf}")
    return rule, [their_name.replace("{i}", layer[1] if layer else "") + ending for their_name in rule.names]


def _found(folder: Folder, architecture: Architecture) -> dict[str, str]:
    """The tensors of a folder: by the names of our tables without a prefix -> by their names in the file.

    Files differ in whether they write the prefix; the oldest call a norm's weight and bias gamma and beta.
    """
    found: dict[str, str] = {}
    for name in folder.shapes:
        modern = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
        plain = modern.removeprefix(architecture.body)
        if plain in found:
            raise UserError(f"{folder.path}: {name!r} and {found[plain]!r} are two tensors for one place")
        found[plain] = name
    return found


def _misfit(
    folder: Folder, architecture: Architecture, variant: Variant, config: ModelConfig, model: Model
) -> str | None:
    """What keeps the tensors in a folder from being this model, if anything. Looks at names and shapes only."""
    expected: dict[str, tuple[int, ...]] = {}
    for name, weight in model.state_dict().items():
        rule, theirs = _rule(name, architecture, variant)
        shapes = (tuple(tensor.shape) for tensor in rule.write(weight, config.resolve()))
        expected.update(zip((their_name.replace("@", "") for their_name in theirs), shapes, strict=True))
    found = _found(folder, architecture)
    missing = [name for name in expected if name not in found]
    if missing:
        return f"no tensor {missing[0]!r}{_more(missing)}, which {variant.name} needs"
    others = (*architecture.sinusoids, *architecture.aliases, *architecture.idle)
    known = {name.replace("@", "") for name in (*expected, *others)}
    surplus = [name for name in found if name not in known and not LEFTOVERS.search(name)]
    if surplus:
        return f"a tensor {surplus[0]!r}{_more(surplus)}, for which {variant.name} has no place"
    if variant.head == "classification" and config.classes == 1:
        return "one output is a regression, not a class"
    for name, shape in expected.items():
        if not folder.dtypes[found[name]].is_floating_point:
            return f"tensor {name!r} holds {folder.dtypes[found[name]]}; accepted: floating-point weights"
        if folder.shapes[found[name]] != shape:
            return f"tensor {name!r} has the shape {folder.shapes[found[name]]}; its config.json promises {shape}"
    return None


def _more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


@torch.no_grad()
def _fill(folder: Folder, architecture: Architecture, variant: Variant, config: ModelConfig, model: Model) -> None:
    """Copy each weight out of the file, once, into a model that has none yet."""
    found, state = _found(folder, architecture), {}
    for name in model.state_dict():
        rule, theirs = _rule(name, architecture, variant)
        read = [folder.tensor(found[their_name.replace("@", "")]) for their_name in theirs]
        ours = rule.read(read, config.resolve())
        mapped = any(ours.data_ptr() == tensor.data_ptr() for tensor in read)
        state[name] = ours.to(torch.float32, memory_format=torch.contiguous_format, copy=mapped)
    for name, tensor in state.items():  # as load_state_dict(assign=True), without its cost for many small modules
        owner, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(owner), leaf, nn.Parameter(tensor))
    for second, first in architecture.aliases.items():
        second, first = second.replace("@", ""), first.replace("@", "")
        is_a_copy = second in found and first in found and second not in _own_names(architecture, variant, model)
        if is_a_copy and not torch.equal(folder.tensor(found[second]), folder.tensor(found[first])):
            raise UserError(f"{folder.path}: {second} differs from {first}, but config.json says that they are one")
    for name, size in architecture.sinusoids.items():
        stored, sizes = found.get(name.replace("@", "")), size(config.resolve())
        if stored is None:
            continue
        if folder.shapes[stored] != sizes or not _close(folder.tensor(stored), sinusoid(*sizes)):
            raise UserError(f"{folder.path}: {stored} is not the table of sinusoids; a trained one is not supported")


def _close(stored: Tensor, expected: Tensor) -> bool:
    return torch.allclose(stored.float(), expected, atol=1e-3)


def _own_names(architecture: Architecture, variant: Variant, model: Model) -> set[str]:
    return {n.replace("@", "") for name in model.state_dict() for n in _rule(name, architecture, variant)[1]}


def _architecture_of(config: ModelConfig) -> tuple[Architecture, Variant]:
    """The architecture and class that a config's parts make."""
    misfits = []
    for architecture in ARCHITECTURES:
        if architecture.parts["family"] == config.family:
            for variant in architecture.variants:
                problems = list(_problems(config.resolve(), architecture, variant))
                if not problems:
                    return architecture, variant
                misfits.append((variant.head != config.resolve().head, len(problems), variant.name, problems))
    _, _, name, problems = min(misfits)
    raise _NoArchitecture(f"the nearest is {name}, which needs {listed(problems)}")


def _problems(c: ModelConfig, architecture: Architecture, variant: Variant) -> Iterator[str]:
    """What a config would have to be for a foreign class, where it is not: `positions = 'learned' (here 'alibi')`."""
    pooler = c.activation if variant.pooler == "activation" else variant.pooler
    needed = {**architecture.parts, "head": variant.head, "pooler": pooler}
    needed.setdefault("head_width", c.head_width if "head_width" in architecture.keys else c.width // c.heads)
    needed.setdefault("kv_heads", c.kv_heads if "kv_heads" in architecture.keys else c.heads)
    if "target_vocabulary" not in architecture.keys and c.family == "encoder-decoder":
        needed["target_vocabulary"] = c.vocabulary
    free = {"output_bias"} if needed["output_bias"] else set()  # a bias we have not is written as zeros
    if c.head not in ("tokens", "pretraining"):
        free |= {"output_bias", "output_scale"}
    if c.head in ("none", "tokens") and c.pooler == "none":
        free |= {"pool"}
    for key, value in needed.items():
        if key not in free and getattr(c, key) != value:
            yield f"{key} = {value!r} (here {getattr(c, key)!r})"
    tied_matters = c.family == "encoder-decoder" or c.head in ("tokens", "pretraining")
    if tied_matters and _their_tied(c.tied, architecture) is None:
        yield f"tied = {listed(architecture.tied)} (here {c.tied!r})"
    if architecture.activation and c.activation not in ACTIVATION_NAMES.values():
        yield f"activation = {listed(dict.fromkeys(ACTIVATION_NAMES.values()))} (here {c.activation!r})"


def _their_tied(tied: str, architecture: Architecture) -> str | None:
    """How a model leaves: as it is tied, or, where only its inputs are one table, as two equal ones."""
    possible = [tied, "none"] if tied == "inputs" else [tied]
    return next((choice for choice in possible if choice in architecture.tied), None)


def _with_their_weights(config: ModelConfig, architecture: Architecture) -> ModelConfig:
    """The config with the weights that they have in any case and ours may lack: a bias for words, one segment."""
    tied = _their_tied(config.tied, architecture) or config.tied
    segments = config.segments or int("segments" in architecture.keys)
    output_bias = config.output_bias or bool(architecture.parts["output_bias"])
    return config.replace(segments=segments, output_bias=output_bias, tied=tied)


def _added(name: str, weight: Tensor, own: Mapping[str, Tensor]) -> Tensor:
    """A weight that they have and ours has not: the one input table once more, or zeros, which change nothing."""
    return own["embedding.table_VD"].clone() if name == "target.table_VD" else torch.zeros(weight.shape)


def _write_config(
    config: ModelConfig, architecture: Architecture, variant: Variant, carried: Mapping[str, Any]
) -> dict[str, Any]:
    """Their config.json. Keys that older readers know by another place or demand to see are written out too."""
    full = config.resolve()
    vocabulary = full.target_vocabulary or full.vocabulary
    ids = {key: value if value is None else value % vocabulary for key, value in architecture.ids.items()}
    written: dict[str, Any] = {
        **ids,
        **copy.deepcopy(dict(carried)),
        "model_type": architecture.kind,
        "architectures": [variant.name],
    }
    written |= {"dtype": "float32", "is_encoder_decoder": full.family == "encoder-decoder", **architecture.demands}
    for ours, theirs in architecture.keys.items():
        written |= dict.fromkeys(theirs, getattr(full, ours))
    if architecture.context_offset:
        written["max_position_embeddings"] -= architecture.context_offset
    for key in architecture.activation:
        written[key] = next(name for name, ours in ACTIVATION_NAMES.items() if ours == full.activation)
    written |= architecture.tied.get(full.tied, {})
    if full.head in TEXT_HEADS:
        count = full.classes if full.head == "classification" else 1
        written.setdefault("id2label", {str(i): f"LABEL_{i}" for i in range(count)})
        written.setdefault("label2id", {label: int(i) for i, label in written["id2label"].items()})
        written["problem_type"] = "single_label_classification" if full.head == "classification" else "regression"
    return _nested(written)


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys as inner objects."""
    result: dict[str, Any] = {}
    for key, value in flat.items():
        outer, dot, inner = key.partition(".")
        if dot:
            result.setdefault(outer, {})[inner] = value
        else:
            result[key] = value
    return result
