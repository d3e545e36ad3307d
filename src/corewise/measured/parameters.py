"""The parameters of a trial as a typed object; files and records hold them as a flat mapping.

This file travels to the measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
from enum import Enum
from typing import Any, Mapping, Optional, Type

# Values of `data` that are generated; any other value is a folder.
GENERATED_DATA = ("synthetic", "labelled")
# Marks a workload's own arguments among the keys of the flat mapping.
ARGS_PREFIX = "args."


class Choice(str, Enum):
    """A closed set of values. Each is a string, so JSON holds the plain text."""

    def __str__(self) -> str:
        return str(self.value)


class Mode(Choice):
    TRAIN = "train"
    INFER = "infer"


class Device(Choice):
    CPU = "cpu"
    CUDA = "cuda"


class BatchScope(Choice):
    PROCESS = "process"
    NODE = "node"
    GLOBAL = "global"


class Collectives(Choice):
    """What carries the messages between ranks; the default is nccl on GPUs, gloo on CPUs, grpc in tensorflow."""

    DEFAULT = "default"
    GLOO = "gloo"
    SHARED = "shared"
    MPI = "mpi"
    NCCL = "nccl"
    GRPC = "grpc"
    HOROVOD = "horovod"


class LearningRateRule(Choice):
    """Whether the learning rate grows with the number of samples of a step on all ranks."""

    CONSTANT = "constant"
    LINEAR = "linear"


class DType(Choice):
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT64 = "float64"
    FLOAT16 = "float16"
    INT8 = "int8"
    COMPLEX64 = "complex64"
    COMPLEX128 = "complex128"


class MemoryFormat(Choice):
    CONTIGUOUS = "contiguous"
    CHANNELS_LAST = "channels_last"
    BLOCKED = "blocked"


class Freezing(Choice):
    NONE = "none"
    FOLD = "fold"
    FULL = "full"


class MathKernels(Choice):
    VENDOR = "vendor"
    VANILLA = "vanilla"


class Isa(Choice):
    """The widest instruction set that vendor kernels may use."""

    DEFAULT = "default"
    SSE41 = "sse41"
    AVX2 = "avx2"
    AVX512 = "avx512"
    AVX512_BF16 = "avx512_bf16"
    AMX = "amx"


class Optimizer(Choice):
    SGD = "sgd"
    ADAM = "adam"
    ADAMW = "adamw"


class Float32Precision(Choice):
    DEFAULT = "default"
    BF16 = "bf16"
    TF32 = "tf32"


class Denormals(Choice):
    DEFAULT = "default"
    FLUSH = "flush"


class Allocator(Choice):
    DEFAULT = "default"
    RETAIN = "retain"
    TCMALLOC = "tcmalloc"
    JEMALLOC = "jemalloc"


class HugePages(Choice):
    DEFAULT = "default"
    TRANSPARENT = "transparent"


class OpenMP(Choice):
    DEFAULT = "default"
    LIBGOMP = "libgomp"
    LIBIOMP5 = "libiomp5"


class WaitPolicy(Choice):
    DEFAULT = "default"
    ACTIVE = "active"
    PASSIVE = "passive"


class PlacementPolicy(Choice):
    COMPACT = "compact"
    SPREAD = "spread"
    NUMA = "numa"
    GPU = "gpu"


class MemoryPolicy(Choice):
    DEFAULT = "default"
    LOCAL = "local"
    INTERLEAVE = "interleave"


class Binding(Choice):
    RANK = "rank"
    CORE = "core"
    NONE = "none"


@dataclasses.dataclass(frozen=True)
class TrialParameters:
    """Every parameter of a trial, concrete; the defaults are those of the axes.

    Workload, runtime and execution are plain strings, because plug-ins add to them.

    Example:
        >>> TrialParameters.from_mapping({"workload": "matmul", "threads": 4, "args.size": 512}).threads
        4
    """

    workload: str = ""
    mode: Mode = Mode.TRAIN
    runtime: str = "torch"
    device: Device = Device.CPU
    nodes: int = 1
    # Processes of each node.
    processes: int = 1
    threads: int = 1
    interop_threads: Optional[int] = None
    batch: int = 16
    batch_scope: BatchScope = BatchScope.PROCESS
    collectives: Collectives = Collectives.DEFAULT
    learning_rate_rule: LearningRateRule = LearningRateRule.CONSTANT
    dtype: DType = DType.FLOAT32
    memory_format: MemoryFormat = MemoryFormat.CONTIGUOUS
    execution: str = "eager"
    freezing: Freezing = Freezing.NONE
    math: MathKernels = MathKernels.VENDOR
    isa: Isa = Isa.DEFAULT
    float32_precision: Float32Precision = Float32Precision.DEFAULT
    denormals: Denormals = Denormals.DEFAULT
    optimizer: Optimizer = Optimizer.SGD
    allocator: Allocator = Allocator.DEFAULT
    huge_pages: HugePages = HugePages.DEFAULT
    openmp: OpenMP = OpenMP.DEFAULT
    wait_policy: WaitPolicy = WaitPolicy.DEFAULT
    data: str = "synthetic"
    loader_workers: int = 0
    pinned_memory: bool = False
    placement: PlacementPolicy = PlacementPolicy.COMPACT
    smt: bool = False
    memory_policy: MemoryPolicy = MemoryPolicy.DEFAULT
    bind: Binding = Binding.RANK
    reserved_cores: int = 0
    oversubscribe: bool = False
    # The workload's own arguments, by name without the prefix `args.`.
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # The effort of `corewise primitives`, which splits a trial into its primitives. None in studies.
    breakdown: Optional[Mapping[str, Any]] = None

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> TrialParameters:
        """Convert a flat mapping, in which arguments are keys `args.NAME`; a missing key takes its default.

        Raises:
            ValueError: a key is unknown, or a value is not in the closed set of its parameter.
        """
        values = dict[str, Any]()
        arguments = dict[str, Any]()
        for name, value in mapping.items():
            if name.startswith(ARGS_PREFIX):
                arguments[name[len(ARGS_PREFIX) :]] = value
            elif name in _CHOICES:
                values[name] = _read_choice(name, value)
            elif name in _PLAIN:
                values[name] = value
            else:
                raise ValueError(f"unknown parameter {name!r}; known: {', '.join((*_FLAT, 'args.NAME'))}")
        return cls(**values, arguments=arguments)

    def to_mapping(self) -> dict[str, Any]:
        """Convert to the flat mapping of files and records, with plain values in a fixed order."""
        flat = {name: _to_plain(getattr(self, name)) for name in _FLAT}
        flat.update((ARGS_PREFIX + name, self.arguments[name]) for name in sorted(self.arguments))
        if self.breakdown is not None:
            flat["breakdown"] = dict(self.breakdown)
        return flat

    @property
    def num_ranks(self) -> int:
        """The number of processes on all nodes."""
        return self.nodes * self.processes

    def is_default(self, name: str) -> bool:
        """Return whether the named parameter has its default value."""
        return bool(getattr(self, name) == getattr(_DEFAULTS, name))


def _read_choice(name: str, value: Any) -> Choice:
    try:
        return _CHOICES[name](value)
    except ValueError:
        known = ", ".join(_CHOICES[name])
        raise ValueError(f"unknown value {value!r} of {name}; known: {known}") from None


def _to_plain(value: Any) -> Any:
    return value.value if isinstance(value, Choice) else value


_DEFAULTS = TrialParameters()
_FLAT = tuple(
    field.name for field in dataclasses.fields(TrialParameters) if field.name not in ("arguments", "breakdown")
)
_CHOICES: Mapping[str, Type[Choice]] = {
    name: type(getattr(_DEFAULTS, name)) for name in _FLAT if isinstance(getattr(_DEFAULTS, name), Choice)
}
_PLAIN = (*(name for name in _FLAT if name not in _CHOICES), "breakdown")
