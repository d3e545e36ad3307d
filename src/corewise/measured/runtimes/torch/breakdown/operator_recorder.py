"""Record every operator of a step: its time, its signature, and the data to run it in isolation.

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

from corewise.measured.runtimes.torch.breakdown.operator_flops import count_flops, is_tagged_one_pass
from corewise.measured.runtimes.torch.breakdown.operator_traffic import compute_traffic_bytes
from corewise.measured.runtimes.torch.breakdown.synthetic_inputs import compute_extent, copy_tensors, describe_arguments
from corewise.measured.runtimes.torch.breakdown.work_classes import (
    VIEWS,
    count_distinct_bytes,
    describe_convolution,
    find_category,
    find_layout,
    format_parameters,
    format_shapes,
    list_tensors,
    parse_operator_name,
)

Key = Tuple[Any, ...]
# Returns nanoseconds.
Clock = Callable[[], int]
_find_backward_node: Callable[[], Any] = getattr(torch._C, "_current_autograd_node", lambda: None)
NAMED_TYPES = (torch.device, torch.layout, torch.memory_format)
# Operators that name a section of the step, as optimizers do, and compute nothing.
MARKER_NAMESPACES = ("profiler",)
# Results of these operators are random or uninitialized, so they are not compared.
RANDOM_NAMES = ("dropout", "bernoulli", "rand", "normal_", "uniform_", "empty", "multinomial", "exponential")


@dataclasses.dataclass(frozen=True)
class RecordedCall:
    """The inputs and outputs of a call in the model."""

    args: Any
    kwargs: Mapping[str, Any]
    outputs: Tuple[Tensor, ...]


@dataclasses.dataclass
class RecordedOperator:
    """One primitive as it was recorded in the model.

    Attributes:
        args: The arguments, with descriptions in place of tensors.
        description: The fields of a Primitive, without times.
        grad_enabled: With gradients, some operators save more for the backward pass.
        num_tracked: Calls in which the cache was tracked.
        input_cache_hits: For each input, the tracked calls that found it in the cache.
        num_new_pages: New pages of all tracked calls.
    """

    func: Any
    args: Any
    kwargs: Mapping[str, Any]
    description: Dict[str, Any]
    grad_enabled: bool = False
    inference_mode: bool = False
    sample: Optional[RecordedCall] = None
    num_tracked: int = 0
    input_cache_hits: List[int] = dataclasses.field(default_factory=list)
    output_cache_hits: int = 0
    num_new_pages: int = 0

    @property
    def new_pages(self) -> float:
        """New pages per call."""
        return self.num_new_pages / max(1, self.num_tracked)


def _skip_autograd() -> Any:
    """Return a guard that takes effect on creation, so it must be created where it is entered."""
    return torch._C._AutoDispatchBelowAutograd()


@contextlib.contextmanager
def enter_recorded_modes(operator: RecordedOperator) -> Iterator[None]:
    """Enter the modes in which the model called the operator, below autograd as it was there."""
    inference, grad = torch.inference_mode(operator.inference_mode), operator.grad_enabled
    with inference, torch.set_grad_enabled(grad), _skip_autograd():
        yield


class OperatorRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Times each operator of the steps within by two clock readings, which are events on a GPU."""

    def __init__(self, clock: Callable[[], Any], cache_bytes: int, sample_bytes: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operators: Dict[Key, RecordedOperator] = {}
        self.calls: List[Tuple[Key, Any, Any]] = []
        self.is_updating = False
        self._clock, self._sample_bytes = clock, sample_bytes
        self._cache_model: Optional[_CacheModel] = None
        self._cache_bytes = cache_bytes

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Optional[Mapping[str, Any]] = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.namespace in MARKER_NAMESPACES:
            return func(*args, **kwargs)
        key = (func, self._find_phase(), *build_signatures(func, args, kwargs))
        if key not in self.operators:
            return self._record_first_call(key, func, args, kwargs)
        if self._cache_model is not None:
            return self._run_tracked(self._cache_model, self.operators[key], func, args, kwargs)
        began = self._clock()
        made = func(*args, **kwargs)
        ended = self._clock()
        self.calls.append((key, began, ended))
        return made

    @contextlib.contextmanager
    def track_cache(self) -> Iterator[None]:
        """Track which tensors are cached in the steps within; their times do not count."""
        self._cache_model = _CacheModel(self._cache_bytes)
        try:
            yield
        finally:
            self._cache_model = None

    def _find_phase(self) -> str:
        if self.is_updating:
            return "update"
        return "backward" if _find_backward_node() is not None else "forward"

    def _record_first_call(self, key: Key, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Run an operator that is not known yet, and record all that is needed to run it again."""
        name = parse_operator_name(func)
        inputs = [*list_tensors(args), *list_tensors(kwargs)]
        num_bytes = 2 * sum(count_distinct_bytes(each) for each in inputs)
        is_sampled = num_bytes <= self._sample_bytes and not any(part in name for part in RANDOM_NAMES)
        described_args, described_kwargs = describe_arguments((args, dict(kwargs)))
        given = copy_tensors((args, dict(kwargs))) if is_sampled else None
        before = {each.untyped_storage().data_ptr() for each in inputs}
        made = func(*args, **kwargs)
        outputs = list_tensors(made)
        writes = func._schema.is_mutable
        moves = writes or any(each.untyped_storage().data_ptr() not in before for each in outputs)
        category = find_category(name, self._find_phase(), moves or not outputs)
        self.operators[key] = RecordedOperator(
            func,
            described_args,
            described_kwargs,
            _describe_call(func, category, key[1], args, kwargs, made),
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
        )
        if given is not None and outputs:
            self._sample_bytes -= num_bytes
            results = tuple(copy_tensors(each.detach()) for each in outputs)
            self.operators[key].sample = RecordedCall(given[0], given[1], results)
        return made

    def _run_tracked(self, cache: _CacheModel, operator: RecordedOperator, func: Any, args: Any, kwargs: Any) -> Any:
        inputs = [*list_tensors(args), *list_tensors(kwargs)]
        cached = [cache.contains(each) for each in inputs]
        pages_before = count_page_faults()
        made = func(*args, **kwargs)
        operator.num_new_pages += count_page_faults() - pages_before
        outputs = [each for each in list_tensors(made) if not any(each is given for given in inputs)]
        operator.output_cache_hits += bool(outputs) and cache.contains(max(outputs, key=count_distinct_bytes))
        # A view does not access memory.
        if operator.description["category"] != "view":
            cache.record_use(inputs, outputs)
        operator.num_tracked += 1
        hits = operator.input_cache_hits or [0] * len(cached)
        operator.input_cache_hits = [a + b for a, b in zip(hits, cached)]
        return made


@dataclasses.dataclass(frozen=True)
class _MemoryUse:
    """A range of memory that an operator read or wrote.

    Attributes:
        is_whole: Most bytes of the range were used; otherwise it is strided.
        at: The time of the use, in bytes used before.
    """

    begin: int
    end: int
    is_whole: bool
    at: int

    def contains(self, other: _MemoryUse) -> bool:
        if self.is_whole:
            return self.begin <= other.begin and other.end <= self.end
        return (self.begin, self.end) == (other.begin, other.end)


class _CacheModel:
    """A model of the last-level cache: least recently used, by address."""

    def __init__(self, cache_bytes: int) -> None:
        self._cache_bytes = cache_bytes
        self._used_bytes = 0
        # The uses of each storage. Of uses that contain each other, only the last is stored.
        self._uses: Dict[int, List[_MemoryUse]] = {}

    def contains(self, tensor: Tensor) -> bool:
        """Return whether the whole tensor is still cached, maybe as part of another one."""
        use = _describe_use(tensor, self._used_bytes)
        made_at = [each.at for each in self._uses.get(_identify_storage(tensor), ()) if each.contains(use)]
        return bool(made_at) and self._used_bytes - max(made_at) + count_distinct_bytes(tensor) <= self._cache_bytes

    def record_use(self, inputs: List[Tensor], outputs: List[Tensor]) -> None:
        """Record inputs as read first and results as written last, so that large tensors evict others."""
        for each in inputs:
            self._record_tensor(each, self._used_bytes + count_distinct_bytes(each))
        self._used_bytes += sum(count_distinct_bytes(each) for each in (*inputs, *outputs))
        for each in outputs:
            self._record_tensor(each, self._used_bytes)

    def _record_tensor(self, tensor: Tensor, at: int) -> None:
        made, before = _describe_use(tensor, at), self._uses.get(_identify_storage(tensor), ())
        self._uses[_identify_storage(tensor)] = [*(each for each in before if not made.contains(each)), made]


def _describe_use(tensor: Tensor, at: int) -> _MemoryUse:
    reach_bytes = compute_extent(tuple(tensor.shape), tensor.stride()) * tensor.element_size()
    begin = tensor.data_ptr()
    return _MemoryUse(begin, begin + reach_bytes, 2 * count_distinct_bytes(tensor) > reach_bytes, at)


def _identify_storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def build_signatures(func: Any, args: Tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tuple[Any, Any]:
    """Build the signature that distinguishes calls of an operator; views of different parts are equal."""
    if parse_operator_name(func) in VIEWS:
        return build_signature(list_tensors(args)), ()
    return build_signature(args), build_signature(kwargs)


def build_signature(value: Any) -> Any:
    """Build a signature of shapes, strides, dtypes and options; floats such as learning rates are equal."""
    if isinstance(value, Tensor):
        return (tuple(value.shape), value.stride(), value.dtype, value.device.type)
    if isinstance(value, (list, tuple)):
        return tuple(build_signature(each) for each in value)
    if isinstance(value, Mapping):
        return tuple((name, build_signature(each)) for name, each in value.items())
    if isinstance(value, (float, complex)):
        return "number"
    if isinstance(value, (int, bool, str, type(None), torch.dtype)):
        return value
    # Other objects may be new in every step, so only their type counts.
    return repr(value) if isinstance(value, NAMED_TYPES) else type(value).__name__


def _describe_call(
    func: Any, category: str, phase: str, args: Any, kwargs: Mapping[str, Any], made: Any
) -> Dict[str, Any]:
    name = parse_operator_name(func)
    inputs = [*list_tensors(args), *list_tensors(kwargs)]
    involved = inputs or list_tensors(made)
    floats = [each for each in involved if each.is_floating_point()] or involved
    dtype = str(floats[0].dtype).replace("torch.", "") if floats else "none"
    return {
        "operator": name,
        "category": category,
        "phase": phase,
        "shapes": format_shapes(involved),
        "layout": find_layout(involved),
        "dtype": dtype,
        "parameters": format_parameters(func, args),
        "problem": describe_convolution(name, args, made),
        "flops": 0.0 if category == "view" else count_flops(name, args, made, is_tagged_one_pass(func)),
        "traffic_bytes": compute_traffic_bytes(func, category, args, kwargs, made),
    }


def record_event() -> Any:
    """Record an event on the GPU's stream."""
    mark = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    mark.record()
    return mark


def count_page_faults() -> int:
    """Count the minor page faults of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
