"""The same model, run by `transformers`: the witness of a certificate. Imported only where it is installed."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

import torch
from torch import Tensor

# What their outputs are called, in the order in which ours are put in a row.
FIELDS = ("prediction_logits", "logits", "seq_relationship_logits", "last_hidden_state", "pooler_output")


def is_installed() -> bool:
    return importlib.util.find_spec("transformers") is not None


def their_scores(name: str, folder: Path, texts: list[Tensor]) -> tuple[Tensor, str]:
    """All that their class says about texts (1, L), in one row, loaded from a folder as users do; and who says it."""
    transformers = importlib.import_module("transformers")
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()  # tensors of ours that it passes over are not worth a report
    model = getattr(transformers, name).from_pretrained(folder, local_files_only=True, dtype=torch.float32).eval()
    scores = []
    for tokens in texts:
        target = {"decoder_input_ids": tokens} if model.config.is_encoder_decoder else {}
        said = model(input_ids=tokens, **target)
        scores += [said[field].flatten() for field in FIELDS if said.get(field) is not None]
    return torch.cat(scores), f"transformers {transformers.__version__}"
