"""TorchScript takes a module whatever ids its values happen to have."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.jit import _builtins  # noqa: E402

from corewise.runtimes.torch.execution import scripted  # noqa: E402


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factors = [3, 4]

    def forward(self, x: torch.Tensor) -> Any:
        return x * self.factors[0] + torch.ops.aten.relu(x)


def test_a_value_with_the_id_of_a_freed_operator_is_still_a_value() -> None:
    module = Scaled()
    assert torch.ops.aten.relu(torch.ones(1)) == 1  # an operator found by its id, too
    _builtins._get_builtin_table()[id(module.factors)] = "aten::len"
    assert scripted(module)(torch.ones(1)).item() == 4
