"""A model's operators in program order, with the values that flow between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, Optional, Tuple


@dataclass(frozen=True)
class Ref:
    """The value of this number, in the arguments of a call or among the outputs."""

    value: int


@dataclass(frozen=True)
class Call:
    """One call of an operator: target, arguments and result values."""

    # Name of the graph's node, for people.
    name: str
    # An operator of torch (OpOverload), or any callable, which only Python can call.
    target: Any
    # Constants, Refs, and lists and tuples of these.
    args: Tuple[Any, ...]
    kwargs: Mapping[str, Any]
    # Numbers of the result values.
    results: Tuple[int, ...]
    # Returns a tuple or list whose elements are the results.
    has_several_results: bool = False
    # Draws random numbers, so it stays in program order.
    is_random: bool = False


@dataclass(frozen=True)
class Pack:
    """A layer's weights, reordered before the calls for the operator that reads them."""

    # Packed values: the weight, and for a convolution the bias.
    results: Tuple[int, ...]
    # Values it is computed from, all of them state: weight, bias, and of a folded batch norm weight, bias,
    # mean and variance. None where one is missing.
    sources: Tuple[Optional[int], ...]
    eps: float
    # Padding, stride, dilation and groups of a convolution.
    geometry: Tuple[Any, ...]
    input_size: Tuple[int, ...]
    # A convolution on our Winograd kernel.
    is_winograd: bool = False

    @property
    def is_convolution(self) -> bool:
        return bool(self.geometry)


@dataclass(frozen=True)
class Program:
    """What a model computes for one input signature; value numbers are dense, from 0."""

    calls: Tuple[Call, ...]
    num_values: int
    # Values of the caller's inputs, flattened.
    inputs: Tuple[int, ...]
    # Parameters and buffers: value number to qualified name in the module.
    state: Mapping[int, str]
    # Other tensors of the graph.
    constants: Mapping[int, Any]
    # Refs and constants, flattened.
    outputs: Tuple[Any, ...]
    # Pairs of calls (earlier, later) that keep this order without a value between them: one writes to memory
    # that the other touches, or both draw random numbers. The tasks' `needs` include them.
    order: Tuple[Tuple[int, int], ...] = ()
    # Cut along the batch.
    is_cut: bool = False
    # Slices of the whole batch, if it is cut from the inputs on.
    num_slices: int = 0
    # Small recurrent layers over one input that are joined into wider ones.
    num_joined_lstms: int = 0
    # Recurrent layers, or slices of them, that run on our kernel.
    num_own_lstms: int = 0
    # Slice number of each call, None if it takes the whole batch. Empty if every call may be a separate task,
    # because there are fewer slices of recurrent layers than cores.
    slices: Tuple[Optional[int], ...] = ()
    packs: Tuple[Pack, ...] = ()

    @property
    def has_only_torch_operators(self) -> bool:
        """Whether it runs the module's operators, on the module's values."""
        return not self.packs and not self.num_own_lstms

    @property
    def packed_values(self) -> Tuple[int, ...]:
        """The values that are packed weights."""
        return tuple(value for pack in self.packs for value in pack.results)

    @property
    def num_winograd(self) -> int:
        """Convolutions that run on our Winograd kernel."""
        return sum(pack.is_winograd for pack in self.packs)

    def list_reads(self, call: int) -> Tuple[int, ...]:
        """List the values that a call reads, each once, in order."""
        values: dict[int, None] = {}
        for value in list_values((self.calls[call].args, tuple(self.calls[call].kwargs.values()))):
            values[value] = None
        return tuple(values)


def list_values(tree: Any) -> Tuple[int, ...]:
    """List the numbers of the values in an argument, in order."""
    if isinstance(tree, Ref):
        return (tree.value,)
    if isinstance(tree, (list, tuple)):
        return tuple(value for branch in tree for value in list_values(branch))
    return ()
