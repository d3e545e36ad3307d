"""Joined LSTMs compute the same as the separate layers."""

import copy
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.utils import _pytree as pytree

from corewise.accelerate.freeze import lstm_replacement
from corewise.accelerate.freeze.freeze_module import freeze
from corewise.accelerate.freeze.lstm_joining import JoinedLstm
from corewise.accelerate.unsupported import Unsupported
from corewise.measured.runtimes.torch.modules.network import build_network
from corewise.measured.workloads.registry import find_workload

HIDDEN = 5


@pytest.fixture(autouse=True)
def no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a machine without a compiler; with one, LSTMs run on our kernel instead."""
    monkeypatch.setattr(lstm_replacement, "has_kernels", lambda: False)


class Members(nn.Module):
    """LSTMs over one input, with different uses of their results."""

    def __init__(self, ends: str = "sum", hidden: int = HIDDEN, **options: Any) -> None:
        super().__init__()
        self.members = nn.ModuleList(nn.LSTM(6, hidden, **options) for _ in range(3))
        self.ends = ends

    def forward(self, x: Any) -> Any:
        results = [member(x) for member in self.members]
        if self.ends == "everything":
            return results
        if self.ends == "views":
            return [rows.view(-1) for rows, _ in results]
        if self.ends == "states":
            return torch.cat([state[0] for _, state in results], -1)
        return torch.stack([rows for rows, _ in results]).sum(0)


class Read(Members):
    """Rows and inputs in other layouts and orders."""

    def forward(self, x: Any) -> Any:
        if self.ends == "from behind":
            return [member(x)[-2].view(-1) for member in self.members]
        if self.ends == "sliced":
            return [member(x)[:1][0].view(-1) for member in self.members]
        return [member(x)[0].transpose(0, 1).view(-1) for member in self.members]


class Named(Members):
    """Inputs, modules and buffers with names of torch's functions, or of parts that freezing adds."""

    def __init__(self) -> None:
        super().__init__()
        self.joined, self.prepared_0, self.mean = nn.Tanh(), nn.Sigmoid(), nn.Flatten()
        self.linear = nn.Linear(6, 6)
        self.register_buffer("joined_0", torch.full((6,), 2.0))

    def forward(self, flip: Any, x: Any) -> Any:
        x = self.linear(self.prepared_0(self.joined(x))) * self.joined_0
        return [self.mean(member(x)[0]) for member in self.members]


class FlippedByName(Members):
    """The input is given by its name."""

    def forward(self, x: Any) -> Any:
        flipped = torch.flip(input=x, dims=[0])
        own = self.members[2](torch.flip(input=x, dims=[1]))[0]
        return [*(member(flipped)[0] for member in self.members[:2]), own]


class Numbers(Members):
    """NaN is replaced in each member's rows."""

    def forward(self, x: Any) -> Any:
        return [member(x)[0].nan_to_num(7.0) for member in self.members]


class Backwards(nn.Module):
    """Each member flips the input again, and its result back."""

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
    """Compare on new inputs, of the example's size and of another."""
    with torch.inference_mode():
        for rows in (shape[1], shape[1] + 3):
            x = torch.randn(shape[0], rows, *shape[2:])
            one, other = (pytree.tree_leaves(run(x.clone())) for run in (module, frozen))
            for wanted, got in zip(one, other, strict=True):
                torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)
                assert got.stride() == wanted.stride()


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
    module = build_network(workload.build_layers(args), 1).eval()
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
    [Members(hidden=64), Members(num_layers=2), Members(proj_size=2), Written()],
    ids=["wide", "deep", "projected", "written to"],
)
@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_what_does_not_pay_or_cannot_be_joined_is_not_frozen(module: nn.Module) -> None:
    with pytest.raises(Unsupported, match="joined only if several read one input"):
        freeze(module.eval(), (torch.randn(7, 4, 6),))


def test_layers_with_hooks_stay_as_they_are() -> None:
    module = Members().eval()
    calls: list[int] = []
    module.members[1].register_forward_hook(lambda *_: calls.append(1))
    frozen = freeze(module, (torch.randn(7, 4, 6),))
    [wide] = joined(frozen)
    # Layers with other options are not joined.
    assert len(wide.layers) == 2
    calls.clear()
    with torch.inference_mode():
        frozen(torch.randn(7, 4, 6))
    assert calls == [1]


@pytest.mark.parametrize(
    ("ends", "options"),
    [
        ("from behind", {}),
        ("sliced", {}),
        ("turned", {"batch_first": True}),
        ("turned", {"batch_first": True, "bidirectional": True}),
    ],
    ids=str,
)
def test_rows_lie_in_memory_as_those_of_the_members(ends: str, options: dict[str, Any]) -> None:
    module = Read(ends, **options).eval()
    frozen = freeze(module, (torch.randn(7, 4, 6),))
    assert len(joined(frozen)) == 1
    assert_same(frozen, module, 7, 4, 6)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_single_step_of_one_row_and_steps_without_a_batch(options: dict[str, Any]) -> None:
    module = Members("everything", **options).eval()
    frozen = freeze(module, (torch.randn(7, 6),))
    assert len(joined(frozen)) == 1
    assert_same(frozen, module, 1, 1, 6)
    with torch.inference_mode():
        x = torch.randn(3, 6)
        for one, other in zip(*(pytree.tree_leaves(run(x)) for run in (module, frozen)), strict=True):
            torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-6)
            # The results do not hold the memory of the wide layer.
            assert other.untyped_storage().nbytes() == one.untyped_storage().nbytes()


def test_names_of_functions_and_of_new_parts_may_be_taken() -> None:
    module = Named().eval()
    x = torch.randn(7, 4, 6)
    frozen = freeze(module, (x, x))
    assert len(joined(frozen)) == 1
    with torch.inference_mode():
        torch.testing.assert_close(frozen(x, x + 1), module(x, x + 1), rtol=1e-5, atol=1e-6)


def test_inputs_may_be_given_by_name() -> None:
    module = FlippedByName().eval()
    frozen = freeze(module, (torch.randn(7, 4, 6),))
    [wide] = joined(frozen)
    # Only layers over the same input are joined.
    assert len(wide.layers) == 2
    assert_same(frozen, module, 7, 4, 6)


def test_a_layer_that_gives_no_numbers_does_not_spoil_the_others() -> None:
    module = Numbers().eval()
    with torch.no_grad():
        module.members[1].bias_ih_l0.fill_(float("nan"))
    frozen = freeze(module, (torch.randn(7, 4, 6),))
    [wide] = joined(frozen)
    assert len(wide.layers) == 2
    assert_same(frozen, module, 7, 4, 6)


def test_a_layer_with_a_custom_forward_is_not_joined() -> None:
    module = Members("everything").eval()
    module.members[0].forward = lambda x: (2 * x, (x, x))
    frozen = freeze(module, (torch.randn(7, 4, 6),))
    [wide] = joined(frozen)
    assert len(wide.layers) == 2
    assert_same(frozen, module, 7, 4, 6)


def test_freezing_draws_no_numbers_and_what_is_frozen_evaluates() -> None:
    module = Members().eval()
    x = torch.randn(7, 4, 6)
    before = torch.get_rng_state()
    frozen = freeze(module, (x,))
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(part.training for part in frozen.modules())
    torch.testing.assert_close(freeze(frozen, (x,))(x), module(x), rtol=1e-5, atol=1e-6)


def test_what_was_joined_can_be_copied_and_does_not_follow_the_module() -> None:
    module = Members().eval()
    x = torch.randn(7, 4, 6)
    frozen = freeze(module, (x,))
    wanted = module(x)
    with torch.no_grad():
        for weight in module.parameters():
            weight.mul_(-2.0)
    for one in (frozen, copy.deepcopy(frozen), pickle.loads(pickle.dumps(frozen))):
        torch.testing.assert_close(one(x), wanted, rtol=1e-5, atol=1e-6)
