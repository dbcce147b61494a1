"""Who may look at whom. One polarity everywhere: True = may attend. None = everyone may.

B batch · L length of the queries · S length of the keys
A mask on tokens is keep_BS, a mask on pairs is keep_BLS; attention sees the grid keep_B1LS (1 stands for the heads).
"""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.schema import UserError


def grid(keep: Tensor | None) -> Tensor | None:
    """A mask on tokens (B, S) or on pairs (B, L, S) in the shape attention takes: (B, 1, 1 or L, S)."""
    if keep is None:
        return None
    if keep.dtype != torch.bool:  # attention would add numbers to the scores
        raise UserError(f"keep has dtype {keep.dtype}; must be torch.bool, True = may attend")
    return keep[:, None, None, :] if keep.ndim == 2 else keep[:, None]


def check_shape(name: str, keep: Tensor | None, rows: int, queries: int, keys: int) -> None:
    """A mask of another size would be stretched to fit where it can, silently."""
    fitting = [(rows, keys), (rows, queries, keys)]
    if keep is not None and tuple(keep.shape) not in fitting:
        raise UserError(f"{name} has the shape {tuple(keep.shape)}; must be {fitting[0]} or {fitting[1]}")


def causal(pos_q: Tensor, pos_k: Tensor) -> Tensor:
    """No position sees a later one (B or 1, 1, L, S).

    No future token changes a past logit (measured by `qkv lab mask`). It compares positions, not indices, so that it
    is also right where one new query meets many cached keys.
    """
    return (pos_k[:, None, :] <= pos_q[:, :, None])[:, None]


def both(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """Allowed by both masks."""
    if a is None or b is None:
        return a if b is None else b
    return a & b


def packed(documents_BL: Tensor) -> tuple[Tensor, Tensor]:
    """Several documents in one row, told apart by number: a mask that separates them, positions that start anew.

    documents_BL (1, 1, 1, 2, 2) gives positions (0, 1, 2, 0, 1).
    """
    keep_BLL = documents_BL[:, :, None] == documents_BL[:, None, :]
    earlier = torch.ones(keep_BLL.shape[1:], dtype=torch.bool, device=keep_BLL.device).tril(-1)
    return keep_BLL, (keep_BLL & earlier).sum(-1)


def positions_of(tokens: Tensor, keep: Tensor | None) -> Tensor:
    """The position of each token of (B, L, ...), counted from the first visible one; (1, L) where all rows agree.

    So padding on the left moves nothing, nor does padding on the right or a token hidden in the middle.
    """
    pos_1L = torch.arange(tokens.shape[1], device=tokens.device)[None]
    if keep is None or keep.ndim != 2 or bool(keep[:, :1].all()):
        return pos_1L
    first_B1 = keep.int().argmax(1, keepdim=True)
    return (pos_1L - first_B1).clamp(min=0)
