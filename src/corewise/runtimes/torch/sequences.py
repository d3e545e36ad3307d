"""Modules of described layers for sequences.

Measured side: standard library and torch only, Python 3.9. All of them can be scripted.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class TimeMajor(nn.Module):
    """Steps before samples; free where the input lies so in memory already."""

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(0, 1).contiguous()


class Lstm(nn.Module):
    """One direction over (steps, samples, features); a reversed one goes from the last step to the first."""

    __constants__ = ("reverse",)

    def __init__(self, in_features: int, hidden: int, reverse: bool) -> None:
        super().__init__()
        self.lstm = nn.LSTM(in_features, hidden)
        self.reverse = reverse

    def forward(self, x: Tensor) -> Tensor:
        if self.reverse:
            return torch.flip(self.lstm(torch.flip(x, [0]))[0], [0])
        return self.lstm(x)[0]  # type: ignore[no-any-return]


class Attention(nn.Module):
    """Scaled dot-product attention over (samples, steps, queries and keys and values)."""

    __constants__ = ("num_heads",)

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads

    def forward(self, x: Tensor) -> Tensor:
        batch, steps, features = x.shape[0], x.shape[1], x.shape[2] // 3
        by_head = x.view(batch, steps, 3, self.num_heads, features // self.num_heads).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(by_head[0], by_head[1], by_head[2])
        return seen.transpose(1, 2).reshape(batch, steps, features)


class MeanOverSteps(nn.Module):
    """The mean over all steps, which come first or second."""

    __constants__ = ("dim",)

    def __init__(self, time_major: bool) -> None:
        super().__init__()
        self.dim = 0 if time_major else 1

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(self.dim)
