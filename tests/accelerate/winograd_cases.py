"""Fixtures and helpers for tests of Winograd convolution."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from corewise.accelerate.kernels.build import NativeBuildError, load_native_module

# Relative to the root mean square. Observed errors are about twice those of direct convolutions.
MOST_ERROR = 4e-6


@pytest.fixture(autouse=True)
def built(need: Callable[[bool, str], None]) -> Iterator[None]:
    """Build the operators, seed the generator, and restore the threads."""
    try:
        load_native_module()
    except NativeBuildError as problem:
        need(False, f"the C++ module: {problem}")
    torch.manual_seed(5)
    num_threads = torch.get_num_threads()
    with torch.no_grad():
        yield
    torch.set_num_threads(num_threads)


def error(made: Any, wanted: Any) -> float:
    return float((made.detach().double() - wanted.detach()).norm() / wanted.detach().norm())


def images(*sizes: int) -> Any:
    return torch.randn(*sizes).contiguous(memory_format=torch.channels_last)


def weights(results: int, channels: int, kernel: int) -> Any:
    return torch.randn(results, channels, kernel, kernel) / math.sqrt(channels * kernel**2)
