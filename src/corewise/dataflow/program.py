"""A model's operators in program order, with the values that flow between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, Optional, Tuple


@dataclass(frozen=True)
class Ref:
    """The value of that number, in the arguments of a call or among the outputs."""

    value: int


@dataclass(frozen=True)
class Call:
    """One operator: what is called, with what, and the values it gives."""

    name: str  # of the graph's node, for people
    target: Any  # an operator of torch (OpOverload), or any callable, which only Python can call
    args: Tuple[Any, ...]  # constants, Refs, and lists and tuples of these
    kwargs: Mapping[str, Any]
    results: Tuple[int, ...]  # numbers of the values it gives
    spreads: bool = False  # whether it returns a tuple or list that is spread over the results
    is_random: bool = False  # draws from the generator: kept in program order


@dataclass(frozen=True)
class Pack:
    """A layer's weights in the order in memory that its operator reads fastest, made before the calls."""

    results: Tuple[int, ...]  # values it gives: weight, and of a convolution the bias
    # Values it is made of, all of them state: weight and bias, and of a batch norm that is folded in weight,
    # bias, mean and variance; None where there is none.
    sources: Tuple[Optional[int], ...]
    eps: float
    geometry: Tuple[Any, ...]  # of a convolution: padding, stride, dilation, groups
    input_size: Tuple[int, ...]
    is_winograd: bool = False  # a convolution on the kernel of our own

    @property
    def is_convolution(self) -> bool:
        return bool(self.geometry)


@dataclass(frozen=True)
class Program:
    """What a model computes for inputs of one kind; value numbers are dense, from 0."""

    calls: Tuple[Call, ...]
    num_values: int
    inputs: Tuple[int, ...]  # the values the caller brings, flattened
    state: Mapping[int, str]  # parameters and buffers: value number to qualified name in the module
    constants: Mapping[int, Any]  # other tensors that came with the graph
    outputs: Tuple[Any, ...]  # flattened: Refs and constants
    # Pairs of calls (earlier, later) that keep this order though no value flows between them: one writes to
    # memory that the other touches, or both draw random numbers. The tasks' `needs` already hold these.
    order: Tuple[Tuple[int, int], ...] = ()
    is_cut: bool = False  # along the batch
    num_slices: int = 0  # that the whole batch is cut into, from the inputs on
    num_joined: int = 0  # small recurrent layers over one input that are parts of wider ones
    num_own: int = 0  # recurrent layers, or slices of them, that run on the kernel of our own
    # Of each call the number of its slice, None where it takes the whole batch; empty where every call is a
    # task of its own right: there are fewer slices of recurrent layers than cores.
    slices: Tuple[Optional[int], ...] = ()
    packs: Tuple[Pack, ...] = ()

    @property
    def is_torchs_own(self) -> bool:
        """Whether it runs the operators that the module runs, on what they are given there."""
        return not self.packs and not self.num_own

    @property
    def packed(self) -> Tuple[int, ...]:
        """The values that are packed weights."""
        return tuple(value for pack in self.packs for value in pack.results)

    @property
    def num_winograd(self) -> int:
        """Convolutions that run on the kernel of our own."""
        return sum(pack.is_winograd for pack in self.packs)

    def reads(self, call: int) -> Tuple[int, ...]:
        """The values a call takes, each once, in order."""
        found: dict[int, None] = {}
        for value in values_in((self.calls[call].args, tuple(self.calls[call].kwargs.values()))):
            found[value] = None
        return tuple(found)


def values_in(tree: Any) -> Tuple[int, ...]:
    """The numbers of the values an argument names, in order."""
    if isinstance(tree, Ref):
        return (tree.value,)
    if isinstance(tree, (list, tuple)):
        return tuple(value for branch in tree for value in values_in(branch))
    return ()
