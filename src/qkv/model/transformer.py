"""The three families: an encoder looks both ways, a decoder only back, an encoder-decoder is one of each with
cross-attention between. Three thin classes over one stack of one block.

    hidden = model(tokens, keep)        logits = model.logits(hidden)        answer = model.text(hidden, keep)

A model knows no text, loss, optimiser or file. `qkv.model.build` makes one from a config.

B batch · L length · S source length · D width · V vocabulary · N rows of a cache
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.model.attention import Attend, View, taken
from qkv.model.cache import Cache, KeyValue
from qkv.model.dropout import Dropout
from qkv.model.heads import TextHead, TokenHead, place_in_rows
from qkv.model.layers import Block
from qkv.model.masks import both, causal, check_shape, grid, positions_of
from qkv.model.positions import Positions
from qkv.schema import UserError


class Embedding(nn.Module):
    """Token ids to vectors, times sqrt(width) if `scaled` (2017), plus a vector for the segment (BERT)."""

    def __init__(self, *, vocabulary: int, width: int, segments: int, scaled: bool) -> None:
        super().__init__()
        self.table_VD = nn.Parameter(torch.empty(vocabulary, width))
        self.segments = nn.Parameter(torch.empty(segments, width)) if segments else None
        self.factor = width**0.5 if scaled else 1.0

    def forward(self, tokens_BL: Tensor, segments_BL: Tensor | None = None) -> Tensor:
        if tokens_BL.ndim != 2 or tokens_BL.is_floating_point():
            found = f"shape {tuple(tokens_BL.shape)} and dtype {tokens_BL.dtype}"
            raise UserError(f"tokens have {found}; must be whole numbers of shape (rows, length)")
        x_BLD = _looked_up("token", tokens_BL, self.table_VD)
        if self.factor != 1.0:
            x_BLD = x_BLD * self.factor
        if self.segments is None:
            if segments_BL is not None:
                raise UserError("segments were given to a model without segment vectors (model.segments = 0)")
            return x_BLD
        if segments_BL is None:
            segments_BL = torch.zeros_like(tokens_BL[:1])
        return x_BLD + _looked_up("segment", segments_BL, self.segments)


class Stack(nn.Module):
    """Positions, blocks, and the norms before and after them."""

    def __init__(
        self,
        *,
        blocks: Sequence[Block],
        positions: Positions,
        causal: bool,
        embedding_norm: nn.Module,
        final_norm: nn.Module,
        dropout: float,
    ) -> None:
        super().__init__()
        self.positions, self.causal = positions, causal
        self.embedding_norm, self.drop = embedding_norm, Dropout(dropout)
        self.blocks = nn.ModuleList(blocks)
        self.final_norm = final_norm

    def forward(
        self,
        x_BLD: Tensor,
        pos: Tensor,
        keep: Tensor | None,
        *,
        cache: Cache | None = None,
        memory: Sequence[KeyValue] = (),
        memory_keep: Tensor | None = None,
        attend: Attend | None = None,
        at_N: Tensor | None = None,
    ) -> tuple[Tensor, list[KeyValue]]:
        """Embedded tokens to last hidden states and, where there is a cache to fill, each layer's keys and values.

        `keep` is about all keys, the remembered ones first. With `at_N`, only the states at these places of the
        flattened rows are wanted (N, D), and the last layer computes no others.
        """
        if x_BLD.shape[1] == 0:
            raise UserError("a sequence of no tokens; a model needs at least one")
        pos_k = pos if cache is None else torch.cat([cache.pos_NS, pos], 1)
        rows, length = x_BLD.shape[:2]
        check_shape("keep", keep, rows, length, pos_k.shape[1])
        if memory:
            _check_rows(rows, len(memory[0].k_NHSK))
            check_shape("the source's keep", memory_keep, rows, length, memory[0].k_NHSK.shape[2])
        allowed = both(grid(keep), causal(pos, pos_k)) if self.causal else grid(keep)
        view = View(self.positions, self.positions.frame(pos, pos_k, x_BLD), allowed, attend)
        memory_view = View(keep=grid(memory_keep), attend=attend)  # distance to a source token means nothing
        x_BLD = self.drop(self.embedding_norm(self.positions.embed(x_BLD, pos)))
        own: list[KeyValue] = []
        early = bool(self.blocks[-1].each_alone)
        for i, block in enumerate(self.blocks):
            past = cache.own[i] if cache is not None and cache.own else None
            source = memory[i] if memory else None
            at = at_N if early and i + 1 == len(self.blocks) else None
            x_BLD, kv = block(x_BLD, view, past=past, memory=source, memory_view=memory_view, at_N=at)
            if cache is not None:
                own.append(kv)
        x_BLD = self.final_norm(x_BLD)
        return (x_BLD if at_N is None or early else taken(x_BLD, at_N)), own

    def remember(self, memory_BSD: Tensor) -> tuple[KeyValue, ...]:
        """Keys and values of a source for every layer's cross-attention."""
        return tuple(block.cross.remember(memory_BSD) for block in self.blocks)  # type: ignore[operator, union-attr]

    def step(self, x_NLD: Tensor, cache: Cache, keep_NL: Tensor | None, attend: Attend | None) -> tuple[Tensor, Cache]:
        """Go on with L new tokens (a prompt, then one at a time): their hidden states, and the longer memory."""
        _check_rows(len(x_NLD), len(cache.pos_NS))
        pos_NL = cache.last_positions() + 1 + positions_of(x_NLD, keep_NL)
        if keep_NL is None:
            keep_NL = torch.ones_like(pos_NL, dtype=torch.bool)
        keep_NS = torch.cat([cache.keep_NS, keep_NL], 1)
        x_NLD, own = self(
            x_NLD, pos_NL, keep_NS, cache=cache, memory=cache.memory, memory_keep=cache.memory_keep_NS, attend=attend
        )
        pos_NS = torch.cat([cache.pos_NS, pos_NL], 1)
        return x_NLD, replace(cache, own=tuple(own), pos_NS=pos_NS, keep_NS=keep_NS)


class Encoder(nn.Module):
    """Every token sees every other (BERT; Devlin et al., 2019).

    Before the encoder a word has one vector. After it, one in each sentence (measured by `qkv lab context`).
    """

    def __init__(self, embedding: Embedding, stack: Stack, words: TokenHead | None, text: TextHead | None) -> None:
        super().__init__()
        self.embedding, self.stack, self.words, self.text = embedding, stack, words, text

    def forward(
        self,
        tokens_BL: Tensor,
        keep: Tensor | None = None,
        *,
        pos: Tensor | None = None,
        segments_BL: Tensor | None = None,
        attend: Attend | None = None,
        at_N: Tensor | None = None,
    ) -> Tensor:
        """Hidden states (B, L, D). `keep` (B, L) hides padding; (B, L, L) allows pairs. With `at_N`, only those at
        these places of the flattened rows (N, D)."""
        x_BLD = self.embedding(tokens_BL, segments_BL)
        pos = positions_of(x_BLD, keep) if pos is None else pos
        return self.stack(x_BLD, pos, keep, attend=attend, at_N=at_N)[0]

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """Logits of every token at the given hidden states, of any leading shape: ask only where there is a target."""
        return _token_logits(self.words, hidden_ND, self.embedding.table_VD)


class Decoder(nn.Module):
    """Every token sees itself and those before it (GPT; Radford et al., 2018)."""

    def __init__(self, embedding: Embedding, stack: Stack, words: TokenHead | None, text: TextHead | None) -> None:
        super().__init__()
        self.embedding, self.stack, self.words, self.text = embedding, stack, words, text

    def forward(
        self,
        tokens_BL: Tensor,
        keep: Tensor | None = None,
        *,
        pos: Tensor | None = None,
        attend: Attend | None = None,
        at_N: Tensor | None = None,
    ) -> Tensor:
        """Hidden states (B, L, D), all positions at once: one pass trains them all. `keep`, `at_N` as in Encoder."""
        x_BLD = self.embedding(tokens_BL)
        pos = positions_of(x_BLD, keep) if pos is None else pos
        return self.stack(x_BLD, pos, keep, attend=attend, at_N=at_N)[0]

    def start(self, rows: int) -> Cache:
        """The cache of a decoder that has read nothing."""
        return Cache.empty(rows, self.embedding.table_VD.device)

    def step(
        self, tokens_NL: Tensor, cache: Cache, keep_NL: Tensor | None = None, *, attend: Attend | None = None
    ) -> tuple[Tensor, Cache]:
        """Hidden states (N, L, D) of new tokens after those in the cache, and the cache that holds both."""
        return self.stack.step(self.embedding(tokens_NL), cache, keep_NL, attend)

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """Logits of every next token at the given hidden states, of any leading shape."""
        return _token_logits(self.words, hidden_ND, self.embedding.table_VD)


class EncoderDecoder(nn.Module):
    """The original Transformer (Vaswani et al., 2017): a decoder that also asks an encoder."""

    def __init__(
        self, embedding: Embedding, target: Embedding | None, encoder: Stack, decoder: Stack, words: TokenHead | None
    ) -> None:
        super().__init__()
        self.embedding, self.target = embedding, target  # no target embedding of its own: both sides share one
        self.encoder, self.decoder, self.words, self.text = encoder, decoder, words, None

    def forward(
        self,
        source_BS: Tensor,
        target_BL: Tensor,
        source_keep: Tensor | None = None,
        target_keep: Tensor | None = None,
        *,
        source_pos: Tensor | None = None,
        target_pos: Tensor | None = None,
        memory_keep: Tensor | None = None,
        attend: Attend | None = None,
    ) -> Tensor:
        """Hidden states of the target (B, L, D), all positions at once. `memory_keep` (B, L, S) says which target token
        may attend to which source token, for several pairs in one row; else `source_keep` does."""
        memory = self.decoder.remember(self.encode(source_BS, source_keep, pos=source_pos, attend=attend))
        memory_keep = source_keep if memory_keep is None else memory_keep
        x_BLD = self._embed_target(target_BL)
        pos = positions_of(x_BLD, target_keep) if target_pos is None else target_pos
        return self.decoder(x_BLD, pos, target_keep, memory=memory, memory_keep=memory_keep, attend=attend)[0]

    def encode(
        self, source_BS: Tensor, keep: Tensor | None = None, *, pos: Tensor | None = None, attend: Attend | None = None
    ) -> Tensor:
        """What the decoder will ask: the source's last hidden states (B, S, D)."""
        x_BSD = self.embedding(source_BS)
        return self.encoder(x_BSD, positions_of(x_BSD, keep) if pos is None else pos, keep, attend=attend)[0]

    def start(self, memory_NSD: Tensor, keep_NS: Tensor | None = None) -> Cache:
        """The cache of a decoder that has read a source and written nothing."""
        return Cache.empty(len(memory_NSD), memory_NSD.device, self.decoder.remember(memory_NSD), keep_NS)

    def step(
        self, tokens_NL: Tensor, cache: Cache, keep_NL: Tensor | None = None, *, attend: Attend | None = None
    ) -> tuple[Tensor, Cache]:
        """Hidden states (N, L, D) of new target tokens after those in the cache, and the cache that holds both."""
        return self.decoder.step(self._embed_target(tokens_NL), cache, keep_NL, attend)

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """Logits of every target token at the given hidden states, of any leading shape."""
        return _token_logits(self.words, hidden_ND, (self.target or self.embedding).table_VD)

    def _embed_target(self, tokens_BL: Tensor) -> Tensor:
        return (self.target or self.embedding)(tokens_BL)


Model = Encoder | Decoder | EncoderDecoder


def hidden_states(
    model: Encoder | Decoder,
    tokens_BL: Tensor,
    keep_BL: Tensor | None,
    segments_BL: Tensor | None,
    at_N: Tensor | None = None,
) -> Tensor:
    """Hidden states by whichever model it is. Segments reach only one that has vectors for them, and one that has a
    single vector gives it to both texts of a pair."""
    if isinstance(model, Encoder) and model.embedding.segments is not None:
        if segments_BL is not None:
            segments_BL = segments_BL.clamp(max=len(model.embedding.segments) - 1)
        return model(tokens_BL, keep_BL, segments_BL=segments_BL, at_N=at_N)
    return model(tokens_BL, keep_BL, at_N=at_N)


def text_answers(
    model: Encoder | Decoder, tokens_BL: Tensor, keep_BL: Tensor | None, segments_BL: Tensor | None
) -> Tensor:
    """One answer for each text."""
    head = _text_head(model)
    return head.answer(_pooled(model, head, tokens_BL, keep_BL, segments_BL))


def text_vectors(
    model: Encoder | Decoder, tokens_BL: Tensor, keep_BL: Tensor | None, segments_BL: Tensor | None
) -> Tensor:
    """What the output layer of the text head reads (B, D)."""
    head = _text_head(model)
    return head.vector(_pooled(model, head, tokens_BL, keep_BL, segments_BL))


def _text_head(model: Encoder | Decoder) -> TextHead:
    if model.text is None:
        raise UserError(
            "this model was built without a head for texts; accepted: model.head = 'classification' or 'regression'"
        )
    return model.text


def _pooled(
    model: Encoder | Decoder, head: TextHead, tokens_BL: Tensor, keep_BL: Tensor | None, segments_BL: Tensor | None
) -> Tensor:
    """The pooled vectors. Where they are read off one token, the last layer is computed for that token only."""
    whole_BL = torch.ones_like(tokens_BL, dtype=torch.bool) if keep_BL is None else keep_BL
    if head.place is None or tokens_BL.shape[-1] == 0:  # the model says best what is wrong with no tokens
        return head.pool(hidden_states(model, tokens_BL, keep_BL, segments_BL), whole_BL)
    return hidden_states(model, tokens_BL, keep_BL, segments_BL, place_in_rows(head.place, whole_BL))


def _token_logits(words: TokenHead | None, hidden_ND: Tensor, table_VD: Tensor) -> Tensor:
    if words is None:
        raise UserError("this model was built without a token head; accepted: model.head = 'tokens' or 'pretraining'")
    return words(hidden_ND, table_VD)


def _check_rows(rows: int, remembered: int) -> None:
    if rows != remembered:
        raise UserError(f"tokens have {rows} rows, but what is remembered has {remembered}")


def _looked_up(what: str, ids: Tensor, table: Tensor) -> Tensor:
    try:
        return F.embedding(ids, table)
    except IndexError:
        raise UserError(
            f"{what} id {int(ids.min())} to {int(ids.max())} found; ids must be 0 to {len(table) - 1}"
        ) from None
