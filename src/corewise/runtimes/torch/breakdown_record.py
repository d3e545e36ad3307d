"""Every operator of a step as torch calls it: timed, told apart, remembered well enough to run alone.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import contextlib
import dataclasses
import resource
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from corewise.runtimes.torch.breakdown_flops import flops_of, is_tagged_one_pass
from corewise.runtimes.torch.breakdown_inputs import copied, extent_of, wanted
from corewise.runtimes.torch.breakdown_traffic import traffic
from corewise.runtimes.torch.breakdown_work import (
    VIEWS,
    category_of,
    layout_of,
    operator_name,
    parameters_of,
    problem_of,
    shapes_of,
    span_bytes,
    tensors_in,
)

Key = Tuple[Any, ...]
Clock = Callable[[], int]  # nanoseconds
_node_of_backward: Callable[[], Any] = getattr(torch._C, "_current_autograd_node", lambda: None)
SAID_BY_NAME = (torch.device, torch.layout, torch.memory_format)
MARKS = ("profiler",)  # they name a stretch of the step, as optimisers do, and compute nothing
NOT_COMPARED = ("dropout", "bernoulli", "rand", "normal_", "uniform_", "empty", "multinomial", "exponential")


@dataclasses.dataclass(frozen=True)
class Sample:
    """A call as the model made it: what went in and what came out."""

    args: Any
    kwargs: Mapping[str, Any]
    outputs: Tuple[Tensor, ...]


@dataclasses.dataclass
class Met:
    """One primitive as it was met in the model."""

    func: Any
    args: Any  # with Wanted in the place of tensors
    kwargs: Mapping[str, Any]
    description: Dict[str, Any]  # what a Primitive says of itself, but for times
    with_grad: bool = False  # some operators leave more for the backward pass where gradients are wanted
    in_inference: bool = False
    sample: Optional[Sample] = None
    num_tracked: int = 0
    inputs_cached: List[int] = dataclasses.field(default_factory=list)  # times each input lay in the cache
    outputs_cached: int = 0
    num_new_pages: int = 0  # that the tracked calls met together

    @property
    def new_pages(self) -> float:
        """Of a call."""
        return self.num_new_pages / max(1, self.num_tracked)


def _below_autograd() -> Any:
    """Begins when it is made, so it must be made where it is entered."""
    return torch._C._AutoDispatchBelowAutograd()


@contextlib.contextmanager
def as_called(met: Met) -> Iterator[None]:
    """The modes in which the model called it, below autograd as it was there."""
    with torch.inference_mode(met.in_inference), torch.set_grad_enabled(met.with_grad), _below_autograd():
        yield


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Times each operator of the steps within by two readings of a clock, which on a GPU are events."""

    def __init__(self, clock: Callable[[], Any], cache_bytes: int, sample_bytes: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.met: Dict[Key, Met] = {}
        self.log: List[Tuple[Key, Any, Any]] = []
        self.updating = False
        self._clock, self._sample_bytes = clock, sample_bytes
        self._track: Optional[_Distances] = None
        self._cache_bytes = cache_bytes

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Optional[Mapping[str, Any]] = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.namespace in MARKS:
            return func(*args, **kwargs)
        key = (func, self._phase(), *signatures(func, args, kwargs))
        if key not in self.met:
            return self._first(key, func, args, kwargs)
        if self._track is not None:
            return self._tracked(self._track, self.met[key], func, args, kwargs)
        began = self._clock()
        made = func(*args, **kwargs)
        ended = self._clock()
        self.log.append((key, began, ended))
        return made

    @contextlib.contextmanager
    def tracking(self) -> Iterator[None]:
        """Steps within tell what lay in the cache; their times do not count."""
        self._track = _Distances(self._cache_bytes)
        try:
            yield
        finally:
            self._track = None

    def _phase(self) -> str:
        if self.updating:
            return "update"
        return "backward" if _node_of_backward() is not None else "forward"

    def _first(self, key: Key, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """The result of a call that was not met before; all that has to be known of it is kept."""
        name = operator_name(func)
        inputs = [*tensors_in(args), *tensors_in(kwargs)]
        num_bytes = 2 * sum(span_bytes(each) for each in inputs)
        is_sampled = num_bytes <= self._sample_bytes and not any(word in name for word in NOT_COMPARED)
        kept_args, kept_kwargs = wanted((args, dict(kwargs)))
        given = copied((args, dict(kwargs))) if is_sampled else None
        before = {each.untyped_storage().data_ptr() for each in inputs}
        made = func(*args, **kwargs)
        outputs = tensors_in(made)
        writes = func._schema.is_mutable
        moves = writes or any(each.untyped_storage().data_ptr() not in before for each in outputs)
        category = category_of(name, self._phase(), moves or not outputs)
        self.met[key] = Met(
            func,
            kept_args,
            kept_kwargs,
            _described(func, category, key[1], args, kwargs, made),
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
        )
        if given is not None and outputs:
            self._sample_bytes -= num_bytes
            results = tuple(copied(each.detach()) for each in outputs)
            self.met[key].sample = Sample(given[0], given[1], results)
        return made

    def _tracked(self, track: _Distances, met: Met, func: Any, args: Any, kwargs: Any) -> Any:
        inputs = [*tensors_in(args), *tensors_in(kwargs)]
        cached = [track.holds(each) for each in inputs]
        pages_before = num_faults()
        made = func(*args, **kwargs)
        met.num_new_pages += num_faults() - pages_before
        outputs = [each for each in tensors_in(made) if not any(each is given for given in inputs)]
        met.outputs_cached += bool(outputs) and track.holds(max(outputs, key=span_bytes))
        if met.description["category"] != "view":  # a view touches nothing
            track.used(inputs, outputs)
        met.num_tracked += 1
        met.inputs_cached = [a + b for a, b in zip(met.inputs_cached or [0] * len(cached), cached)]
        return made


@dataclasses.dataclass(frozen=True)
class _Use:
    """A stretch of memory that an operator read or wrote, and when, in bytes used before."""

    begin: int
    end: int
    is_whole: bool  # most of what lies between was used; else only every so many bytes
    at: int

    def covers(self, other: _Use) -> bool:
        if self.is_whole:
            return self.begin <= other.begin and other.end <= self.end
        return (self.begin, self.end) == (other.begin, other.end)


class _Distances:
    """What the last-level cache would hold if it kept what was used last, address by address."""

    def __init__(self, cache_bytes: int) -> None:
        self._cache_bytes = cache_bytes
        self._so_far = 0
        self._uses: Dict[int, List[_Use]] = {}  # by the storage; of those that cover each other the last

    def holds(self, tensor: Tensor) -> bool:
        """True when all of the tensor was used so lately that it is still there, maybe as part of another."""
        asked = _use(tensor, self._so_far)
        made_at = [each.at for each in self._uses.get(_storage(tensor), ()) if each.covers(asked)]
        return bool(made_at) and self._so_far - max(made_at) + span_bytes(tensor) <= self._cache_bytes

    def used(self, inputs: List[Tensor], outputs: List[Tensor]) -> None:
        """Inputs count as read first and results as written last, so that large ones drive others out."""
        for each in inputs:
            self._note(each, self._so_far + span_bytes(each))
        self._so_far += sum(span_bytes(each) for each in (*inputs, *outputs))
        for each in outputs:
            self._note(each, self._so_far)

    def _note(self, tensor: Tensor, at: int) -> None:
        made, before = _use(tensor, at), self._uses.get(_storage(tensor), ())
        self._uses[_storage(tensor)] = [*(each for each in before if not made.covers(each)), made]


def _use(tensor: Tensor, at: int) -> _Use:
    reach_bytes = extent_of(tuple(tensor.shape), tensor.stride()) * tensor.element_size()
    begin = tensor.data_ptr()
    return _Use(begin, begin + reach_bytes, 2 * span_bytes(tensor) > reach_bytes, at)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def signatures(func: Any, args: Tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tuple[Any, Any]:
    """What tells calls of one operator apart; which part of a tensor a view takes does not."""
    if operator_name(func) in VIEWS:
        return signature(tensors_in(args)), ()
    return signature(args), signature(kwargs)


def signature(value: Any) -> Any:
    """Shapes, strides and dtypes of tensors, and all else but numbers that cost nothing: learning rates."""
    if isinstance(value, Tensor):
        return (tuple(value.shape), value.stride(), value.dtype, value.device.type)
    if isinstance(value, (list, tuple)):
        return tuple(signature(each) for each in value)
    if isinstance(value, Mapping):
        return tuple((name, signature(each)) for name, each in value.items())
    if isinstance(value, (float, complex)):
        return "number"
    if isinstance(value, (int, bool, str, type(None), torch.dtype)):
        return value
    # Of other objects, which may be new in every step, the kind alone.
    return repr(value) if isinstance(value, SAID_BY_NAME) else type(value).__name__


def _described(
    func: Any, category: str, phase: str, args: Any, kwargs: Mapping[str, Any], made: Any
) -> Dict[str, Any]:
    name = operator_name(func)
    inputs = [*tensors_in(args), *tensors_in(kwargs)]
    involved = inputs or tensors_in(made)
    floats = [each for each in involved if each.is_floating_point()] or involved
    dtype = str(floats[0].dtype).replace("torch.", "") if floats else "none"
    return {
        "operator": name,
        "category": category,
        "phase": phase,
        "shapes": shapes_of(involved),
        "layout": layout_of(involved),
        "dtype": dtype,
        "parameters": parameters_of(func, args),
        "problem": problem_of(name, args, made),
        "flops": 0.0 if category == "view" else flops_of(name, args, made, is_tagged_one_pass(func)),
        "traffic_bytes": traffic(func, category, args, kwargs, made),
    }


def event() -> Any:
    """A moment on the GPU, told once everything before it has run."""
    mark = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    mark.record()
    return mark


def num_faults() -> int:
    """Pages of memory that were new to this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
