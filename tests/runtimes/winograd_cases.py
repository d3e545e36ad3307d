"""What tests of Winograd's way share: the operators, images, weights and errors."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from corewise.dataflow.native.build import CannotBuild, native_module

MOST_ERROR = 4e-6  # of the root mean square; direct convolutions reach about half of what is seen


@pytest.fixture(autouse=True)
def built(need: Callable[[bool, str], None]) -> Iterator[None]:
    """The operators, and numbers and threads as every test finds them."""
    try:
        native_module()
    except CannotBuild as problem:
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
