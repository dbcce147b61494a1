"""What a Transformer is compared with: plain torch.nn, the way it was done before. Nothing else in qkv uses these."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn


class Perceptron(nn.Module):
    """One linear map and a threshold (Rosenblatt, 1958)."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.map = nn.Linear(inputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.map(x)[..., 0]


class Layers(nn.Module):
    """A stack of linear maps with the same activation after each but the last (Rumelhart et al., 1986)."""

    def __init__(self, widths: list[int], activation: nn.Module) -> None:
        super().__init__()
        self.maps = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(widths))
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        for number, one in enumerate(self.maps):
            x = one(x) if number == 0 else one(self.activation(x))
        return x


class Recurrence(nn.Module):
    """The simplest recurrent layer (Elman, 1990): each state from the word and the state before it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.word, self.state = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, x_BLD: Tensor) -> Tensor:
        state_BD, states = torch.zeros_like(x_BLD[:, 0]), []
        for x_BD in x_BLD.unbind(1):
            state_BD = torch.tanh(self.word(x_BD) + self.state(state_BD))
            states.append(state_BD)
        return torch.stack(states, 1)

    def steps(self, x_BLD: Tensor) -> int:
        """How often it had to wait for the state before, counted."""
        calls = []
        hook = self.state.register_forward_hook(lambda *_: calls.append(1))
        with torch.no_grad():
            self(x_BLD)
        hook.remove()
        return len(calls)


class Convolution(nn.Module):
    """Each word with its neighbours, `reach` in all (LeCun et al., 1989)."""

    def __init__(self, width: int, reach: int) -> None:
        super().__init__()
        self.map = nn.Conv1d(width, width, reach, padding=reach // 2, bias=False)

    def forward(self, x_BLD: Tensor) -> Tensor:
        return self.map(x_BLD.transpose(1, 2)).transpose(1, 2)


class NormedGru(nn.Module):
    """A gated recurrent network (Cho et al., 2014) with a norm on what enters its gates, that answers yes or no about
    a text of letters by its last state."""

    def __init__(self, letters: int, width: int, norm: str) -> None:
        super().__init__()
        self.width, self.table = width, nn.Embedding(letters, width)
        self.word, self.state = nn.Linear(width, 3 * width), nn.Linear(width, 3 * width)
        made = {"layer": nn.LayerNorm, "batch": nn.BatchNorm1d}[norm]
        self.word_norm, self.state_norm = made(3 * width), made(3 * width)
        self.answer = nn.Linear(width, 1)

    def forward(self, tokens_BL: Tensor, lengths_B: Tensor) -> Tensor:
        state_BD = torch.zeros(len(tokens_BL), self.width)
        for place, x_BD in enumerate(self.table(tokens_BL).unbind(1)):
            word, before = self.word_norm(self.word(x_BD)), self.state_norm(self.state(state_BD))
            (reset, update), new = (word + before)[:, : 2 * self.width].sigmoid().chunk(2, 1), word[:, 2 * self.width :]
            candidate = torch.tanh(new + reset * before[:, 2 * self.width :])
            next_BD = update * state_BD + (1 - update) * candidate
            state_BD = torch.where((place < lengths_B)[:, None], next_BD, state_BD)
        return self.answer(state_BD)[:, 0]


class Seq2Seq(nn.Module):
    """A recurrent encoder and a recurrent decoder. The source reaches the decoder as one vector (Sutskever et al.,
    2014), or through additive attention over all of its states (Bahdanau et al., 2015)."""

    def __init__(self, vocabulary: int, width: int, *, attention: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, width)
        self.encoder = nn.GRU(width, width, batch_first=True)
        self.cell = nn.GRUCell(2 * width if attention else width, width)
        self.query, self.key = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.vector, self.attention = nn.Linear(width, 1, bias=False), attention
        self.words = nn.Linear(width, vocabulary)

    def forward(self, source_BS: Tensor, keep_BS: Tensor, target_BL: Tensor) -> Tensor:
        """Scores of every next word (B, L, V), the right words before it given."""
        states_BSD, _ = self.encoder(self.table(source_BS))
        last_B = keep_BS.sum(1) - 1
        state_BD = states_BSD[torch.arange(len(source_BS)), last_B]
        keys_BSD, made = self.key(states_BSD), []
        for x_BD in self.table(target_BL).unbind(1):
            if self.attention:
                scores_BS = self.vector(torch.tanh(self.query(state_BD)[:, None] + keys_BSD))[..., 0]
                weights_BS = scores_BS.masked_fill(~keep_BS, -torch.inf).softmax(1)
                x_BD = torch.cat([x_BD, (weights_BS[:, None] @ states_BSD)[:, 0]], 1)
            state_BD = self.cell(x_BD, state_BD)
            made.append(state_BD)
        return self.words(torch.stack(made, 1))
