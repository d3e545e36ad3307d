"""TorchScript supports modules whose values reuse the ids of freed operators."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.jit import _builtins

from corewise.measured.runtimes.torch.modules.module_preparation import convert_to_torchscript


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factors = [3, 4]

    def forward(self, x: torch.Tensor) -> Any:
        return x * self.factors[0] + torch.ops.aten.relu(x)


def test_a_value_with_the_id_of_a_freed_operator_is_still_a_value() -> None:
    module = Scaled()
    # Other operators are still found by their ids.
    assert torch.ops.aten.relu(torch.ones(1)) == 1
    _builtins._get_builtin_table()[id(module.factors)] = "aten::len"
    assert convert_to_torchscript(module)(torch.ones(1)).item() == 4
