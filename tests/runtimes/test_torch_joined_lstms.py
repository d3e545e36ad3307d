"""LSTMs over one input frozen as one wider layer compute what they compute by themselves."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402

from corewise.runtimes.base import Infeasible  # noqa: E402
from corewise.runtimes.torch.joined_lstms import JoinedLstm  # noqa: E402
from corewise.runtimes.torch.network import build_network  # noqa: E402
from corewise.runtimes.torch.prepared import freeze  # noqa: E402
from corewise.workloads.registry import find_workload  # noqa: E402

HIDDEN = 5


class Members(nn.Module):
    """LSTMs over one input, and what is done with their results."""

    def __init__(self, ends: str = "sum", hidden: int = HIDDEN, **options: Any) -> None:
        super().__init__()
        self.members = nn.ModuleList(nn.LSTM(6, hidden, **options) for _ in range(3))
        self.ends = ends

    def forward(self, x: Any) -> Any:
        found = [member(x) for member in self.members]
        if self.ends == "everything":
            return found
        if self.ends == "views":
            return [rows.view(-1) for rows, _ in found]
        if self.ends == "states":
            return torch.cat([state[0] for _, state in found], -1)
        return torch.stack([rows for rows, _ in found]).sum(0)


class Backwards(nn.Module):
    """Each member flips the input anew, and its result back."""

    def __init__(self) -> None:
        super().__init__()
        self.members = nn.ModuleList(nn.LSTM(6, HIDDEN) for _ in range(4))

    def forward(self, x: Any) -> Any:
        return torch.cat([torch.flip(member(torch.flip(x, [0]))[0], [0]) for member in self.members], -1)


class Written(Members):
    """The input changes between the members."""

    def forward(self, x: Any) -> Any:
        first = self.members[0](x)[0]
        x.mul_(2.0)
        return first + self.members[1](x)[0]


def joined(frozen: nn.Module) -> list[JoinedLstm]:
    return [part for part in frozen.modules() if isinstance(part, JoinedLstm)]


def assert_same(frozen: nn.Module, module: nn.Module, *shape: int) -> None:
    """On fresh numbers, of the example's size and of another."""
    with torch.inference_mode():
        for rows in (shape[1], shape[1] + 3):
            x = torch.randn(shape[0], rows, *shape[2:])
            one, other = (pytree.tree_leaves(run(x.clone())) for run in (module, frozen))
            for wanted, got in zip(one, other, strict=True):
                torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)


ENDS = ("sum", "everything", "views", "states")
OPTIONS: tuple[dict[str, Any], ...] = ({}, {"bias": False}, {"batch_first": True}, {"bidirectional": True})
# Rows of a layer with the batch first cannot be viewed so by the module itself.
CASES = [(e, o) for e in ENDS for o in OPTIONS if not (e == "views" and "batch_first" in o)]


@pytest.mark.parametrize(("ends", "options"), CASES, ids=lambda value: str(value))
def test_members_of_one_input_become_one(ends: str, options: dict[str, Any]) -> None:
    module = Members(ends, **options).eval()
    frozen = freeze(module, (torch.randn(7, 4, 6),))
    [wide] = joined(frozen)
    assert wide.wide.hidden_size == 3 * HIDDEN
    assert_same(frozen, module, 7, 4, 6)


def test_equal_flips_are_one_input() -> None:
    module = Backwards().eval()
    frozen = freeze(module, (torch.randn(7, 4, 6),))
    assert len(joined(frozen)) == 1
    assert [str(node.target) for node in frozen.graph.nodes].count(str(torch.flip)) == 1 + 4
    assert_same(frozen, module, 7, 4, 6)


def test_the_ensemble_of_both_directions_is_frozen_as_two_layers() -> None:
    workload = find_workload("lstm_ensemble")
    args = {**workload.parameters, "time_steps": 6}
    module = build_network(workload.layers(args), 1).eval()
    frozen = freeze(module, (torch.randn(4, 6, 10),))
    assert [wide.wide.hidden_size for wide in joined(frozen)] == [40, 40]
    with torch.inference_mode():
        x = torch.randn(9, 6, 10)
        torch.testing.assert_close(frozen(x), module(x), rtol=1e-5, atol=1e-6)


def test_a_packed_sequence_goes_through_the_layers_themselves() -> None:
    module = Members("everything").eval()
    frozen = freeze(module, (torch.randn(7, 4, 6),))
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(7, 4, 6), torch.tensor([7, 5, 5, 2]))
    with torch.inference_mode():
        for (one, _), (other, _) in zip(module(packed), frozen(packed), strict=True):
            torch.testing.assert_close(other.data, one.data)


@pytest.mark.parametrize(
    "module",
    [
        Members(hidden=64),
        Members(num_layers=2),
        Members(proj_size=2),
        Written(),
    ],
    ids=["wide", "deep", "projected", "written to"],
)
@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_what_does_not_pay_or_cannot_be_joined_is_not_frozen(module: nn.Module) -> None:
    with pytest.raises(Infeasible, match="no convolution of images, linear layer or small LSTMs"):
        freeze(module.eval(), (torch.randn(7, 4, 6),))


def test_layers_with_hooks_stay_as_they_are() -> None:
    module = Members().eval()
    calls: list[int] = []
    module.members[1].register_forward_hook(lambda *_: calls.append(1))
    frozen = freeze(module, (torch.randn(7, 4, 6),))
    [wide] = joined(frozen)
    assert len(wide.layers) == 2  # those without
    calls.clear()
    with torch.inference_mode():
        frozen(torch.randn(7, 4, 6))
    assert calls == [1]
