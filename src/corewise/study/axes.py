"""The table of axes: the values that each axis accepts, its default, and its keywords."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Any

from corewise.errors import suggest_nearest
from corewise.measured.parameters import (
    Allocator,
    BatchScope,
    Binding,
    Collectives,
    Denormals,
    Device,
    DType,
    Float32Precision,
    Freezing,
    HugePages,
    Isa,
    LearningRateRule,
    MathKernels,
    MemoryFormat,
    MemoryPolicy,
    Mode,
    OpenMP,
    Optimizer,
    PlacementPolicy,
    WaitPolicy,
)
from corewise.study.syntax.expressions import Expression, ExpressionError, parse_expression

MODES = tuple(mode.value for mode in Mode)
# How a model can be executed. The first entry is the default.
EXECUTIONS = ("eager", "fast-kernels", "compile", "script", "malleable")
# Old names of executions that older records and tuned files still contain.
RENAMED_EXECUTIONS = {"quickened": "fast-kernels"}
RUNTIMES = ("torch", "numpy", "jax", "tensorflow")
MACHINE_NAMES = ("allocation", "cores", "cpus", "numa_nodes", "sockets")
COUNT_KEYWORDS = ("allocation", "powers-of-two", "all-factorisations")
THREAD_KEYWORDS = (*COUNT_KEYWORDS, "socket", "node")
MULTI_VALUE_KEYWORDS = ("powers-of-two", "all-factorisations")


@dataclass(frozen=True)
class Keyword:
    """A keyword of a study file that stands for numbers which depend on the machine."""

    text: str

    def resolve(self, num_cores: int, num_socket_cores: int = 0) -> tuple[int, ...]:
        """Return the numbers that the keyword stands for on an allocation of this many cores.

        `num_socket_cores` are those of a socket that is part of the allocation as a whole. If it is 0, `socket`
        stands for no number.
        """
        if self.text in ("allocation", "node"):
            return (num_cores,)
        if self.text == "socket":
            return (num_socket_cores,) if num_socket_cores else ()
        if self.text == "powers-of-two":
            powers = [1 << bit for bit in range(num_cores.bit_length())]
            return tuple(dict.fromkeys([*powers, num_cores]))
        return tuple(number for number in range(1, num_cores + 1) if num_cores % number == 0)


AxisValue = str | int | float | bool | None | Keyword | Expression


@dataclass(frozen=True)
class Axis:
    """One setting that a study may vary; `value_type` is count, choice, flag or folder."""

    name: str
    value_type: str
    default: AxisValue
    help: str
    choices: tuple[str, ...] = ()
    minimum: int = 0
    maximum: int = 0
    keywords: tuple[str, ...] = ()
    takes_expression: bool = False
    takes_null: bool = False


def _define_count(
    name: str,
    default: AxisValue,
    help: str,
    minimum: int,
    maximum: int,
    *,
    keywords: tuple[str, ...] = (),
    takes_null: bool = False,
) -> Axis:
    return Axis(
        name,
        "count",
        default,
        help,
        minimum=minimum,
        maximum=maximum,
        keywords=keywords,
        # Expressions may use the allocation, which depends on the reserved cores.
        takes_expression=name != "reserved_cores",
        takes_null=takes_null,
    )


def _define_choice(name: str, choices: Iterable[str], help: str) -> Axis:
    values = tuple(str(choice) for choice in choices)
    return Axis(name, "choice", values[0], help, choices=values)


def _define_flag(name: str, help: str) -> Axis:
    return Axis(name, "flag", False, help)


_MAX_CORES = 1 << 16
_MAX_NODES = 1 << 16
_FILLING_THREADS = parse_expression("max(1, allocation // processes)", ("allocation", "processes"))

AXES: Mapping[str, Axis] = {
    axis.name: axis
    for axis in (
        _define_choice("device", Device, "where the workload computes"),
        _define_count("nodes", 1, "nodes of one trial", 1, _MAX_NODES),
        _define_count(
            "processes", 1, "processes (ranks) of one trial on each node", 1, _MAX_CORES, keywords=COUNT_KEYWORDS
        ),
        _define_count("threads", _FILLING_THREADS, "threads of each process", 1, _MAX_CORES, keywords=THREAD_KEYWORDS),
        _define_count(
            "interop_threads",
            None,
            "operators run concurrently; null: framework default",
            1,
            _MAX_CORES,
            takes_null=True,
        ),
        _define_count("batch", 16, "samples per step", 1, 10**9),
        _define_choice("batch_scope", BatchScope, "whether `batch` counts per process, per node or over all processes"),
        _define_choice("collectives", Collectives, "what carries messages between ranks; default: gloo, nccl on GPUs"),
        _define_choice(
            "learning_rate_rule", LearningRateRule, "whether the learning rate grows with the samples of all ranks"
        ),
        _define_choice("dtype", DType, "number format of the computation"),
        _define_choice("memory_format", MemoryFormat, "layout of images and weights"),
        _define_choice("execution", EXECUTIONS, "how the model is executed"),
        _define_choice("freezing", Freezing, "fold normalisation into convolutions, or make all weights constant"),
        _define_choice("math", MathKernels, "vendor kernels (oneDNN) on or off"),
        _define_choice("isa", Isa, "widest instruction set of vendor kernels (oneDNN, MKL, ATen)"),
        _define_choice("float32_precision", Float32Precision, "internal precision of float32 products"),
        _define_choice("denormals", Denormals, "whether denormal numbers are flushed to zero"),
        _define_choice("optimizer", Optimizer, "optimizer of a model in training"),
        _define_choice("allocator", Allocator, "allocator; retain: glibc keeps freed memory"),
        _define_choice("huge_pages", HugePages, "whether memory is allocated in huge pages"),
        _define_choice("openmp", OpenMP, "OpenMP library loaded first"),
        _define_choice("wait_policy", WaitPolicy, "whether idle OpenMP threads spin"),
        Axis("data", "folder", "synthetic", "synthetic, labelled (generated classes), or a folder of images"),
        _define_count("loader_workers", 0, "processes that load images", 0, _MAX_CORES, keywords=COUNT_KEYWORDS),
        _define_flag("pinned_memory", "load images into pinned memory, which the GPU can copy from directly"),
        _define_choice("placement", PlacementPolicy, "how ranks are placed on cores"),
        _define_flag("smt", "also use the second hardware thread of each core"),
        _define_choice("memory_policy", MemoryPolicy, "NUMA policy of memory allocation"),
        _define_choice("bind", Binding, "bind threads to the rank's cores, to one core each, or not at all"),
        _define_count("reserved_cores", 0, "cores left to the operating system", 0, _MAX_CORES),
        _define_flag("oversubscribe", "allow more threads than cores"),
    )
}
TOP_LEVEL_KEYS = ("workload", "mode", "runtime", "python", "prefix", "environment", "protocol")
EXPRESSION_NAMES = (*AXES, *MACHINE_NAMES, "workload", "mode", "runtime")
FLAG_NAMES = tuple(axis.name for axis in AXES.values() if axis.value_type == "flag")
CHOICE_VALUES = frozenset(choice for axis in AXES.values() for choice in axis.choices) | frozenset(MODES + RUNTIMES)


def check_axis_name(name: str) -> None:
    """Raise ValueError with the nearest axis unless `name` is an axis or `args.NAME`."""
    if name in AXES:
        return
    if name in TOP_LEVEL_KEYS:
        raise ValueError(f"{name!r} is not an axis; write it at the top level of the file")
    prefix, _, argument = name.partition(".")
    if prefix != "args":
        raise ValueError(f"unknown axis {name!r}; {suggest_nearest(name, [*AXES, 'args.NAME'])}")
    if not argument.isidentifier():
        raise ValueError(f"{name!r} does not name a parameter; write args.NAME, for example args.image_size")


def read_axis_value(name: str, value: Any) -> AxisValue:
    """Return the checked value of an axis, with keywords and expressions parsed, or raise ValueError."""
    axis = AXES.get(name)
    if isinstance(value, dict | list):
        raise ValueError(f"{name} takes single values, not {value!r:.60}")
    if isinstance(value, str) and value.startswith("=") and (axis is None or axis.value_type == "count"):
        return _read_expression(name, value[1:].strip(), axis)
    if axis is None:
        return _read_argument(name, value)
    if axis.value_type == "count":
        return _read_count(axis, value)
    if axis.value_type == "choice":
        return _read_choice(axis, value)
    if axis.value_type == "flag":
        if not isinstance(value, bool):
            raise ValueError(f"{name} is true or false, not {value!r}")
        return value
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} is `synthetic`, `labelled` or a folder, not {value!r}")
    return value


def check_count(axis: Axis, value: Any) -> None:
    """Raise ValueError unless `value` is a whole number within the limits of the axis."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{axis.name} needs a whole number, not {value!r}")
    if value < axis.minimum:
        raise ValueError(f"{axis.name} must be at least {axis.minimum}, not {value}")
    if value > axis.maximum:
        raise ValueError(f"{axis.name} must be at most {axis.maximum}, not {value}")


def check_finite(name: str, value: Any) -> None:
    """Raise ValueError for a number that a float cannot hold: records cannot hold it, either."""
    try:
        is_finite = not isinstance(value, int | float) or math.isfinite(value)
    except OverflowError:
        is_finite = False
    if not is_finite:
        raise ValueError(f"{name} must be finite; a float cannot hold the number that was given")


def order_by_dependency(values: Mapping[str, tuple[AxisValue, ...]]) -> tuple[str, ...]:
    """Return the axes, each after those that its expressions use, or raise graphlib.CycleError."""
    dependencies = {
        name: {used for value in candidates if isinstance(value, Expression) for used in value.names if used in values}
        for name, candidates in values.items()
    }
    return tuple(TopologicalSorter(dependencies).static_order())


def _read_count(axis: Axis, value: Any) -> AxisValue:
    if value is None and axis.takes_null:
        return None
    if isinstance(value, str):
        if value in axis.keywords:
            return Keyword(value)
        if value.isdecimal():
            raise ValueError(f"{axis.name} needs a number; write {value} without quotes")
        if axis.keywords:
            raise ValueError(f"unknown keyword {value!r} for {axis.name}; {suggest_nearest(value, axis.keywords)}")
        hint = "; write `= ...` for an expression" if axis.takes_expression else ""
        raise ValueError(f"{axis.name} needs a whole number, not {value!r}{hint}")
    check_count(axis, value)
    return int(value)


def _read_choice(axis: Axis, value: Any) -> str:
    if not isinstance(value, str) or value not in axis.choices:
        raise ValueError(f"unknown value {value!r} of {axis.name}; {suggest_nearest(str(value), axis.choices)}")
    return value


def _read_argument(name: str, value: Any) -> AxisValue:
    if value is not None and not isinstance(value, str | int | float):
        raise ValueError(f"{name} takes a number, a text, true, false or null, not {value!r:.60}")
    check_finite(name, value)
    return value


def _read_expression(name: str, text: str, axis: Axis | None) -> Expression:
    if axis is not None and not axis.takes_expression:
        raise ValueError(f"{name} takes no expression, because the allocation depends on it")
    try:
        expression = parse_expression(text, EXPRESSION_NAMES, CHOICE_VALUES)
    except ExpressionError as error:
        raise ValueError(f"{name}: {error}") from None
    if name in expression.names:
        raise ValueError(f"{name} depends on itself in {text!r}")
    return expression
