"""Modules for sequences, for the layers of `workloads.models.sequence_layers`.

Measured side: standard library and torch only, Python 3.9. All of them can be scripted.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class TimeMajorModule(nn.Module):
    """Puts steps before samples; free if the input already has this memory layout."""

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(0, 1).contiguous()


class LstmModule(nn.Module):
    """An LSTM in one direction over (steps, samples, features); a reversed one starts at the last step."""

    __constants__ = ("reverse",)

    def __init__(self, in_features: int, hidden: int, reverse: bool) -> None:
        super().__init__()
        self.lstm = nn.LSTM(in_features, hidden)
        self.reverse = reverse

    def forward(self, x: Tensor) -> Tensor:
        if self.reverse:
            return torch.flip(self.lstm(torch.flip(x, [0]))[0], [0])
        return self.lstm(x)[0]  # type: ignore[no-any-return]


class AttentionModule(nn.Module):
    """Scaled dot-product attention; input: (samples, steps, concatenated queries, keys and values)."""

    __constants__ = ("num_heads",)

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads

    def forward(self, x: Tensor) -> Tensor:
        batch, steps, features = x.shape[0], x.shape[1], x.shape[2] // 3
        by_head = x.view(batch, steps, 3, self.num_heads, features // self.num_heads).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(by_head[0], by_head[1], by_head[2])
        return attended.transpose(1, 2).reshape(batch, steps, features)


class MeanOverStepsModule(nn.Module):
    """The mean over all steps, which are the first or second dimension."""

    __constants__ = ("dim",)

    def __init__(self, time_major: bool) -> None:
        super().__init__()
        self.dim = 0 if time_major else 1

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(self.dim)
