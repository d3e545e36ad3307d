"""The table of axes: what each may be, its default, and what its words stand for."""

from collections.abc import Mapping
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Any

from corewise.spec.errors import nearest
from corewise.spec.expressions import Expression, ExpressionError, parse_expression

MODES = ("train", "infer")
RUNTIMES = ("torch", "numpy", "jax", "tensorflow")
MACHINE_NAMES = ("allocation", "cores", "cpus", "numa_nodes", "sockets")
COUNT_WORDS = ("allocation", "powers-of-two", "all-factorisations")
SEVERAL_WORDS = ("powers-of-two", "all-factorisations")


@dataclass(frozen=True)
class Word:
    """A word that stands for numbers which depend on the machine."""

    text: str

    def numbers(self, allocation: int) -> tuple[int, ...]:
        """The numbers the word stands for where the allocation has that many cores."""
        if self.text == "allocation":
            return (allocation,)
        if self.text == "powers-of-two":
            powers = [1 << bit for bit in range(allocation.bit_length())]
            return tuple(dict.fromkeys([*powers, allocation]))
        return tuple(number for number in range(1, allocation + 1) if allocation % number == 0)


AxisValue = str | int | float | bool | None | Word | Expression


@dataclass(frozen=True)
class Axis:
    """One thing a study may vary."""

    name: str
    kind: str  # count | choice | flag | folder
    default: AxisValue
    help: str
    choices: tuple[str, ...] = ()
    minimum: int = 0
    maximum: int = 0
    words: tuple[str, ...] = ()
    takes_expression: bool = False
    takes_null: bool = False


def _count(
    name: str,
    default: AxisValue,
    help: str,
    minimum: int,
    maximum: int,
    *,
    words: bool = False,
    null: bool = False,
) -> Axis:
    return Axis(
        name,
        "count",
        default,
        help,
        minimum=minimum,
        maximum=maximum,
        words=COUNT_WORDS if words else (),
        takes_expression=name != "reserved_cores",  # the allocation depends on it
        takes_null=null,
    )


def _choice(name: str, choices: str, help: str) -> Axis:
    words = tuple(choices.split())
    return Axis(name, "choice", words[0], help, choices=words)


def _flag(name: str, help: str) -> Axis:
    return Axis(name, "flag", False, help)


_MAX_CORES = 1 << 16
_THREADS_THAT_FILL = parse_expression("max(1, allocation // processes)", ("allocation", "processes"))

AXES: Mapping[str, Axis] = {
    axis.name: axis
    for axis in (
        _choice("device", "cpu cuda", "where the workload computes"),
        _count("processes", 1, "processes (ranks) of one trial", 1, _MAX_CORES, words=True),
        _count("threads", _THREADS_THAT_FILL, "threads of each process", 1, _MAX_CORES, words=True),
        _count(
            "interop_threads", None, "operators run side by side; null: as it comes", 1, _MAX_CORES, null=True
        ),
        _count("batch", 16, "samples per step", 1, 10**9),
        _choice("batch_scope", "process global", "whether `batch` is one process's or all of them together"),
        _choice(
            "dtype",
            "float32 bfloat16 float64 float16 int8 complex64 complex128",
            "number format of the computation",
        ),
        _choice("memory_format", "contiguous channels_last blocked", "layout of images and weights"),
        _choice("execution", "eager quickened compile script malleable", "how the model is executed"),
        _choice(
            "freezing", "none fold full", "norms folded into convolutions, or all weights made constants"
        ),
        _choice("math", "vendor vanilla", "vendor kernels (oneDNN) on or off"),
        _choice("float32_precision", "default bf16 tf32", "what float32 products are computed in"),
        _choice("denormals", "default flush", "whether numbers near zero become zero"),
        _choice(
            "allocator", "default retain tcmalloc jemalloc", "allocator; retain: glibc keeps freed memory"
        ),
        _choice("huge_pages", "default transparent", "whether memory is asked for in huge pages"),
        _choice("openmp", "default libgomp libiomp5", "OpenMP library loaded first"),
        _choice("wait_policy", "default active passive", "whether idle OpenMP threads spin"),
        Axis("data", "folder", "synthetic", "synthetic, or a folder of images"),
        _count("loader_workers", 0, "processes that load images", 0, _MAX_CORES, words=True),
        _flag("pinned_memory", "load images into memory that the GPU fetches by itself"),
        _choice("placement", "compact spread numa gpu", "which cores the ranks get"),
        _flag("smt", "use the second hardware thread of each core too"),
        _choice("memory_policy", "default local interleave", "which NUMA nodes memory comes from"),
        _choice("bind", "rank core none", "bind threads to their rank's cores, one core each, or not"),
        _count("reserved_cores", 0, "cores left to the system", 0, _MAX_CORES),
        _flag("oversubscribe", "allow more threads than cores"),
    )
}
PLACES_ELSEWHERE = ("workload", "mode", "runtime", "python", "prefix", "environment", "protocol")
EXPRESSION_NAMES = (*AXES, *MACHINE_NAMES, "workload", "mode", "runtime")
FLAG_NAMES = tuple(axis.name for axis in AXES.values() if axis.kind == "flag")
CHOICE_WORDS = frozenset(word for axis in AXES.values() for word in axis.choices) | frozenset(
    MODES + RUNTIMES
)


def check_axis_name(name: str) -> None:
    """Raises ValueError, naming the nearest axis, unless `name` is an axis or `args.NAME`."""
    if name in AXES:
        return
    if name in PLACES_ELSEWHERE:
        raise ValueError(f"{name!r} is not an axis; write it at the left margin of the file")
    prefix, _, own = name.partition(".")
    if prefix != "args":
        raise ValueError(f"unknown axis {name!r}; {nearest(name, [*AXES, 'args.NAME'])}")
    if not own.isidentifier():
        raise ValueError(f"{name!r} does not name a parameter; write args.NAME, as in args.image_size")


def read_axis_value(name: str, value: Any) -> AxisValue:
    """The checked value of an axis, words and expressions recognised; ValueError says what is wrong."""
    axis = AXES.get(name)
    if isinstance(value, dict | list):
        raise ValueError(f"{name} takes single values, not {value!r:.60}")
    if isinstance(value, str) and value.startswith("=") and (axis is None or axis.kind == "count"):
        return _read_expression(name, value[1:].strip(), axis)
    if axis is None:
        return _read_argument(name, value)
    if axis.kind == "count":
        return _read_count(axis, value)
    if axis.kind == "choice":
        return _read_choice(axis, value)
    if axis.kind == "flag":
        if not isinstance(value, bool):
            raise ValueError(f"{name} is true or false, not {value!r}")
        return value
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} is `synthetic` or a folder, not {value!r}")
    return value


def check_count(axis: Axis, value: Any) -> None:
    """Raises ValueError unless `value` is a whole number the axis can take."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{axis.name} needs a whole number, not {value!r}")
    if value < axis.minimum:
        raise ValueError(f"{axis.name} must be at least {axis.minimum}, not {value}")
    if value > axis.maximum:
        raise ValueError(f"{axis.name} must be at most {axis.maximum}, not {value}")


def evaluation_order(values: Mapping[str, tuple[AxisValue, ...]]) -> tuple[str, ...]:
    """The axes, each after those its expressions need; graphlib.CycleError where there is no such order."""
    needs = {
        name: {
            needed
            for value in candidates
            if isinstance(value, Expression)
            for needed in value.names
            if needed in values
        }
        for name, candidates in values.items()
    }
    return tuple(TopologicalSorter(needs).static_order())


def _read_count(axis: Axis, value: Any) -> AxisValue:
    if value is None and axis.takes_null:
        return None
    if isinstance(value, str):
        if value in axis.words:
            return Word(value)
        if value.isdecimal():
            raise ValueError(f"{axis.name} needs a number; write {value} without quotes")
        if axis.words:
            raise ValueError(f"unknown word {value!r} for {axis.name}; {nearest(value, axis.words)}")
        hint = "; write `= ...` for an expression" if axis.takes_expression else ""
        raise ValueError(f"{axis.name} needs a whole number, not {value!r}{hint}")
    check_count(axis, value)
    return int(value)


def _read_choice(axis: Axis, value: Any) -> str:
    if not isinstance(value, str) or value not in axis.choices:
        raise ValueError(f"unknown value {value!r} of {axis.name}; {nearest(str(value), axis.choices)}")
    return value


def _read_argument(name: str, value: Any) -> AxisValue:
    if value is not None and not isinstance(value, str | int | float):
        raise ValueError(f"{name} takes a number, a word, true, false or null, not {value!r:.60}")
    return value


def _read_expression(name: str, text: str, axis: Axis | None) -> Expression:
    if axis is not None and not axis.takes_expression:
        raise ValueError(f"{name} takes no expression, because the allocation depends on it")
    try:
        expression = parse_expression(text, EXPRESSION_NAMES, CHOICE_WORDS)
    except ExpressionError as error:
        raise ValueError(f"{name}: {error}") from None
    if name in expression.names:
        raise ValueError(f"{name} depends on itself in {text!r}")
    return expression
