"""Every choice a user can make, as frozen, strict, nested values. No torch in this file.

A recipe is one TOML file. What the user wrote is kept as written (`heads = 8`, `head_width = 0`); `resolve()` fills in
what was left to be derived, so that changing one key later never meets a stale derived one.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from qkv.schema import Section, key, listed

Family = Literal["encoder", "decoder", "encoder-decoder"]
Task = Literal["fill", "classify", "complete", "translate"]
Positions = Literal["none", "sinusoidal", "learned", "relative", "t5", "alibi", "rotary"]
Score = Literal["dot", "additive"]
Scale = Literal["sqrt", "none", "full"]
Norm = Literal["layer", "rms", "batch", "none"]
NormPlace = Literal["pre", "post"]
FinalNorm = Literal["auto", True, False]
Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "swiglu", "sigmoid", "tanh", "identity"]
Tied = Literal["none", "inputs", "output", "all"]
Head = Literal["auto", "none", "words", "pretraining", "classes", "grade"]
Pool = Literal["auto", "first", "mean", "last"]
Pooler = Literal["none", "tanh", "relu", "gelu"]
Long = Literal["cut", "ends", "windows"]
Balance = Literal["none", "weights"]
TokenizerKind = Literal["wordpiece", "bpe", "unigram", "characters", "bytes"]
Schedule = Literal["linear", "cosine", "inverse_sqrt", "constant"]
Keep = Literal["best", "last"]
Documents = Literal["auto", "lines", "blank-lines", "headings", "files"]

FAMILIES_OF_TASK: dict[Task, tuple[Family, ...]] = {
    "fill": ("encoder",),
    "classify": ("encoder", "decoder"),
    "complete": ("decoder",),
    "translate": ("encoder-decoder",),
}
HEADS_OF_FAMILY: dict[Family, tuple[Head, ...]] = {
    "encoder": ("none", "words", "pretraining", "classes", "grade"),
    "decoder": ("none", "words", "classes", "grade"),
    "encoder-decoder": ("none", "words"),
}
ONLY_FOR: tuple[tuple[str, tuple[Family, ...], object], ...] = (  # key, families that have it, value of the others
    ("decoder_layers", ("encoder-decoder",), 0),
    ("target_vocabulary", ("encoder-decoder",), 0),
    ("segments", ("encoder",), 0),
    ("pooler", ("encoder", "decoder"), "none"),
)


class ModelConfig(Section):
    """The Transformer, as parts chosen by name. Defaults are the small encoder that the recipes start from."""

    preset: str = key("none", "A named starting point; the other keys of this table change it. `qkv plan` lists them.")
    family: Family = key("encoder", "Which Transformer: both-sided encoder, causal decoder, or encoder-decoder.")
    vocabulary: int = key(0, "Number of token ids; 0: what the tokenizer has.", "tokens", ge=0, le=10_000_000)
    target_vocabulary: int = key(
        0, "Number of target token ids of an encoder-decoder; 0: the same as vocabulary.", "tokens", ge=0, le=10_000_000
    )
    context: int = key(
        512,
        "Longest input for which learned positions exist; other schemes have no bound.",
        "tokens",
        ge=1,
        le=10_000_000,
    )
    segments: int = key(0, "Number of segment vectors (sentence A or B); BERT has 2.", "segments", ge=0, le=1024)
    width: int = key(256, "Size D of the vector that stands for a token in every layer.", "features", ge=1, le=65_536)
    heads: int = key(4, "Attention heads H in each layer.", "heads", ge=1, le=1024)
    head_width: int = key(0, "Size K of a head's queries and keys; 0: width / heads.", "features", ge=0, le=65_536)
    kv_heads: int = key(
        0, "Heads that keys and values have, shared by groups of queries; 0: as many as heads.", "heads", ge=0, le=1024
    )
    layers: int = key(4, "Layers of the stack (of the encoder, in an encoder-decoder).", "layers", ge=1, le=1000)
    decoder_layers: int = key(0, "Decoder layers of an encoder-decoder; 0: as many as layers.", "layers", ge=0, le=1000)
    feedforward: int = key(0, "Inner size F of the feed-forward part; 0: 4 x width.", "features", ge=0, le=1_000_000)
    positions: Positions = key("sinusoidal", "How the model knows the order of its tokens.")
    reach: int = key(
        0, "Largest distance told apart by relative (0: 16) and t5 (0: 128) positions.", "tokens", ge=0, le=1_000_000
    )
    buckets: int = key(32, "Number of distance buckets of t5 positions.", "buckets", ge=4, le=65_536)
    rotary_base: float = key(
        10_000.0, "Longest wavelength of rotary positions is 2 pi times this.", "tokens", ge=1.0, le=1e12
    )
    norm: Norm = key("layer", "How activations are normalised.")
    norm_place: NormPlace = key(
        "post", "Normalise after each residual (2017, BERT) or before each part (GPT-2, Llama)."
    )
    norm_eps: float = key(1e-5, "Small number added to the variance inside a norm.", gt=0.0, le=1.0)
    final_norm: FinalNorm = key("auto", "One more norm after the last layer; auto: only where norm_place is pre.")
    embedding_norm: bool = key(False, "Normalise the sum of the embeddings, as BERT and BART do.")
    embedding_scale: bool = key(False, "Multiply token embeddings by sqrt(width), as the 2017 paper does.")
    bias: bool = key(True, "Bias vectors in linear maps and norms; Llama and T5 have none.")
    activation: Activation = key("gelu", "Non-linearity of the feed-forward part.")
    score: Score = key("dot", "How a query is compared with a key.")
    scale: Scale = key("sqrt", "What dot products are divided by: sqrt(K), nothing, or K (full).")
    residual: bool = key(True, "Add each part's input to its output. False is for experiments.")
    tied: Tied = key(
        "output", "Which word tables are one: source and target (inputs), target and output (output), all, or none."
    )
    output_scale: bool = key(False, "Divide by sqrt(width) before the words, as T5 does where its tables are tied.")
    output_bias: bool = key(False, "A bias for each output word.")
    head: Head = key(
        "auto",
        "What is read off the last layer (pretraining: words and next sentence); auto: words, none for an encoder.",
    )
    classes: int = key(2, "Number of labels that head = classes tells apart.", "labels", ge=1, le=1_000_000)
    pool: Pool = key(
        "auto", "Which vector stands for a whole text: first token, mean, last token; auto: first, last for a decoder."
    )
    pooler: Pooler = key("none", "Activation of a dense layer on the pooled vector; BERT has tanh.")

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
            if self.family not in families and value != unset:
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
            "head": ("none" if self.family == "encoder" else "words") if self.head == "auto" else self.head,
            "pool": ("last" if causal else "first") if self.pool == "auto" else self.pool,
        }
        return self.model_copy(update=filled)


class DataConfig(Section):
    """What is learnt from."""

    corpus: str = key(
        "movie-reviews",
        "A catalogue name (`qkv data list`), a file, a folder or a glob; `A + B` is both, `A -> B` aligned lines.",
    )
    validation: str = key("split", "Rows to choose and calibrate by: split (5% of the corpus, by hash), or a corpus.")
    test: str = key("split", "Rows for the final figure only: split (10% of the corpus, by hash), or a corpus.")
    text: str = key("text", "Column that holds the text.")
    pair: str = key("none", "Column that holds the second text of a pair; none: one text.")
    target: str = key("target", "translate: column that holds the translation.")
    label: str = key("label", "Column that holds the label.")
    label_names: str = key("none", "Names for labels, as `0=negative, 1=positive`; a label not named is its own name.")
    group: str = key("none", "Column by whose values evaluation reports apart; none: no groups.")
    length: int = key(
        512, "Longest text in one piece, special tokens counted; see long.", "tokens", ge=4, le=10_000_000
    )
    long: Long = key(
        "cut",
        "classify: a longer text: cut at length; its two ends, half of length each; or read in windows of length that "
        "overlap by half.",
    )
    balance: Balance = key("none", "classify: weights: every label counts alike in the loss, however rare.")
    rows: int = key(
        0, "Learn from so many of the training rows only, drawn by the seed; 0: all.", "rows", ge=0, le=10**9
    )
    documents: Documents = key(
        "auto",
        "fill, complete: what is one document in plain text; auto: what stands between blank lines, a whole file for "
        "complete. Of a table, a row.",
    )
    across: bool = key(False, "complete: windows run on from one document into the next.")
    sentences: str = key("english", "fill: how a document is split into sentences; english or lines.")


class TokenizerConfig(Section):
    """How text becomes tokens. Trained on the training rows, unless init brings a tokenizer."""

    kind: TokenizerKind = key("wordpiece", "Pieces of words, or single characters or bytes.")
    vocab_size: int = key(
        8000, "Most tokens to have; characters and bytes have as many as there are.", "tokens", ge=16, le=10_000_000
    )
    lowercase: bool = key(True, "Read THE and the alike, and é as e.")
    shared: bool = key(True, "translate: one tokenizer for both languages, not one for each.")


class TrainConfig(Section):
    """How the weights are learnt."""

    epochs: int = key(3, "How often every example is seen, unless steps says otherwise.", "epochs", ge=1, le=1_000_000)
    steps: int = key(0, "Optimiser steps; 0: as many as epochs need.", "steps", ge=0, le=10**9)
    batch_tokens: int = key(
        4096, "Tokens of one optimiser step, padding counted, both sides.", "tokens", ge=1, le=100_000_000
    )
    micro_batches: int = key(
        1, "Pieces a step is computed in, one after the other, to save memory.", "pieces", ge=1, le=100_000
    )
    learning_rate: float = key(5e-4, "Largest step size of AdamW.", gt=0.0, le=10.0)
    schedule: Schedule = key("linear", "How the learning rate falls after the warm-up.")
    warmup: int = key(100, "Steps over which the learning rate rises from 0.", "steps", ge=0, le=10**9)
    weight_decay: float = key(0.01, "Pull of matrices towards 0, times the learning rate, each step.", ge=0.0, le=10.0)
    table_decay: float = key(
        0.0, "The same pull for the table of tokens, so that rare ones say little; 0: none.", ge=0.0, le=100.0
    )
    beta1: float = key(0.9, "Memory of AdamW for the gradient.", ge=0.0, lt=1.0)
    beta2: float = key(0.98, "Memory of AdamW for the gradient's square.", ge=0.0, lt=1.0)
    clip: float = key(1.0, "Largest norm of a step's gradient; 0: no limit.", ge=0.0, le=1e9)
    dropout: float = key(
        0.1, "Share of hidden features set to zero in training; kept in steps of 1/256.", ge=0.0, lt=1.0
    )
    attention_dropout: float = key(
        0.0, "Share of attention weights set to zero in training; costs speed.", ge=0.0, lt=1.0
    )
    hide_tokens: float = key(
        0.0,
        "classify: share of a text's tokens hidden in training behind the mask token; in steps of 1/256.",
        ge=0.0,
        lt=1.0,
    )
    mask_words: float = key(
        0.15,
        "fill: share of tokens to be guessed; of ten, eight are masked, one is exchanged, one stays.",
        gt=0.0,
        lt=1.0,
    )
    whole_words: bool = key(False, "fill: guess all pieces of a word or none.")
    next_sentence: bool = key(True, "fill: also judge whether the second text follows the first, as BERT does.")
    label_smoothing: float = key(
        0.0, "classify, complete, translate: share of each target spread evenly over all.", ge=0.0, lt=1.0
    )
    layer_decay: float = key(
        1.0, "Each layer learns so much slower than the one above it, the embeddings slowest.", gt=0.0, le=1.0
    )
    freeze: int = key(
        0, "Parts, from below, that do not learn: 1 the embeddings, 2 the first layer too, ...", "parts", ge=0, le=1001
    )
    report_every: int = key(10, "Steps between two lines of metrics.jsonl.", "steps", ge=1, le=10**9)
    eval_every: int = key(
        0, "Steps between two evaluations on the validation rows; 0: an epoch.", "steps", ge=0, le=10**9
    )
    eval_tokens: int = key(
        0,
        "fill, complete, translate: evaluate on so many tokens of the validation rows, always the same; 0: all.",
        "tokens",
        ge=0,
        le=10**12,
    )
    save_every: int = key(
        100, "Steps between two checkpoints: the most work a crash can cost.", "steps", ge=1, le=10**9
    )
    patience: int = key(
        0, "Stop after so many evaluations without improvement; 0: never.", "evaluations", ge=0, le=10**9
    )
    keep: Keep = key("best", "Which weights the run ends with: best on the validation rows, or last.")
    average: int = key(
        0,
        "Ends with the mean of the weights at so many last evaluations; 0: with those that keep says.",
        "evaluations",
        ge=0,
        le=10_000,
    )


class DecodeConfig(Section):
    """How words are given, one after the other. Read where a model answers, never where it learns."""

    beam: int = key(1, "Hypotheses held at each step; 1: the likeliest word each time.", "hypotheses", ge=1, le=1000)
    length_penalty: float = key(
        0.6, "How far longer answers are favoured: 0 not at all; the 2017 paper has 0.6.", ge=0.0, le=10.0
    )
    max_tokens: int = key(
        0, "Longest answer; 0: 64 to complete, twice the source and 10 to translate.", "tokens", ge=0, le=100_000
    )
    temperature: float = key(
        0.0, "complete: 0: the likeliest each time; 1: by chance, as likely as it is; below 1: tamer.", ge=0.0, le=100.0
    )
    top_k: int = key(0, "complete: by chance among so many of the likeliest; 0: all.", "tokens", ge=0, le=10_000_000)
    top_p: float = key(1.0, "complete: by chance among as few as have this share of the probability.", gt=0.0, le=1.0)


class RuntimeConfig(Section):
    """The machine."""

    threads: int = key(
        0, "Threads for arithmetic; part of what makes a run exact; 0: all cores.", "threads", ge=0, le=1024
    )


class Recipe(Section):
    """One TOML file: everything that decides what a training produces."""

    task: Task = key("classify", "What the model is for.")
    seed: int = key(7, "All randomness of a run is a function of this number.", ge=0, lt=2**63)
    init: str = key(
        "none",
        "What to go on from, weights and tokenizer: a run, a Hugging Face folder or a bundled model; none: nothing.",
    )
    data: DataConfig = Field(default_factory=DataConfig, description="What it learns from.")
    tokenizer: TokenizerConfig = Field(default_factory=TokenizerConfig, description="How text becomes tokens.")
    model: ModelConfig = Field(default_factory=ModelConfig, description="The Transformer.")
    train: TrainConfig = Field(default_factory=TrainConfig, description="How it learns.")
    decode: DecodeConfig = Field(default_factory=DecodeConfig, description="How it answers.")
    runtime: RuntimeConfig = Field(default_factory=RuntimeConfig, description="The machine.")

    @model_validator(mode="after")
    def _task_fits_family(self) -> Self:
        accepted = FAMILIES_OF_TASK[self.task]
        if self.model.family not in accepted:
            raise ValueError(
                f"task = {self.task!r} needs model.family = {listed(accepted)}; found {self.model.family!r}"
            )
        return self
