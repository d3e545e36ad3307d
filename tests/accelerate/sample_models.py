"""Models for tests: wide, narrow, random, and hard to capture."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor, nn


class Wide(nn.Module):
    """Branches over one input, added up."""

    def __init__(self, num_branches: int = 4, features: int = 16) -> None:
        super().__init__()
        self.stem = nn.Linear(features, features)
        self.branches = nn.ModuleList(
            nn.Sequential(nn.Linear(features, 64), nn.Tanh(), nn.Linear(64, features)) for _ in range(num_branches)
        )

    def forward(self, x: Tensor) -> Tensor:
        stem = self.stem(x)
        return torch.stack([branch(stem) for branch in self.branches]).sum(0)


class Lstms(nn.Module):
    """Two directions of an LSTM, joined."""

    def __init__(self, features: int = 8) -> None:
        super().__init__()
        self.forwards, self.backwards = nn.LSTM(features, features), nn.LSTM(features, features)

    def forward(self, x: Tensor) -> Tensor:
        back = torch.flip(self.backwards(torch.flip(x, [0]))[0], [0])
        return torch.cat([self.forwards(x)[0], back], 2)


def equal_costs(
    program: Any, call_signatures: Any, values: Any, teams: Any, widths: Any, budget_s: float
) -> tuple[dict[int, float], ...]:
    """Replace measuring: wider teams are no faster, so branches run together on one core each."""
    return tuple(dict.fromkeys(widths, 1e-3) for _ in program.calls)


class Branches(nn.Module):
    """Small matrices to multiply, in four branches."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.randn(4, 48, 48) / 7)

    def forward(self, x: Tensor) -> Tensor:
        results = []
        for weight in self.weights:
            value = x
            for _ in range(20):
                value = torch.tanh(value @ weight)
            results.append(value)
        return torch.stack(results).sum(0)


class RandomGraph(nn.Module):
    """Operators chosen by a seed, each over earlier values; views and in-place writes among them."""

    def __init__(self, seed: int, num_operators: int, writes: bool) -> None:
        super().__init__()
        chance = random.Random(seed)
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(12, 12) / 4) for _ in range(3))
        names = ["matmul", "add", "tanh", "mul", "view", "softmax", "cat", "chunk"]
        names += ["add_", "view_write", "relu_"] if writes else []
        self.steps = []
        for number in range(1, num_operators + 1):
            sources = (chance.randrange(number), chance.randrange(number))
            self.steps.append((chance.choice(names), *sources, chance.randrange(3)))
        self.shown = sorted({chance.randrange(num_operators + 1) for _ in range(3)} | {num_operators})

    def forward(self, x: Tensor) -> dict[str, Any]:
        values = [x * 1.0]
        for name, first, second, weight in self.steps:
            values.append(self._apply_one(name, values[first], values[second], self.weights[weight]))
        return {"all": [values[number] for number in self.shown], "sum": torch.stack(values).sum()}

    def _apply_one(self, name: str, one: Tensor, two: Tensor, weight: Tensor) -> Tensor:
        if name == "matmul":
            return one @ weight / 4
        if name == "cat":
            return torch.cat([one[:, :6], two[:, 6:]], 1)
        if name == "chunk":
            low, high = one.chunk(2, 1)
            return torch.cat([high, low], 1)
        if name == "view":
            return one.view(12, -1).view(-1, 12)
        if name == "view_write":
            one.view(-1)[::2].mul_(0.5)
            return one + two
        if name == "add_":
            return one.add_(two.tanh())
        if name == "relu_":
            return torch.relu_(one)
        plain = {"add": torch.add, "mul": lambda a, b: a * b.tanh()}
        return plain[name](one, two) if name in plain else getattr(torch, name)(one, *_dim(name))


def _dim(name: str) -> tuple[int, ...]:
    return (1,) if name == "softmax" else ()
