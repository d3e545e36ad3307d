"""Translate a trial's parameters to torch's settings, and read facts back from torch.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import shutil
from typing import Any, ContextManager, Iterator, Mapping, Optional

import torch
from torch import Tensor, nn

from corewise.measured.parameters import MathKernels, Mode, TrialParameters
from corewise.measured.runtimes.base import Infeasible, RankContext
from corewise.measured.runtimes.torch.instruction_proof import prove_instruction_set
from corewise.measured.runtimes.torch.numerics import set_numerics

AUTOCAST_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
OPENMP_NAMES = re.compile(r"lib(gomp|iomp5|omp)\b")
CXX_COMPILERS = ("g++", "clang++", "c++")


@dataclasses.dataclass(frozen=True)
class Settings:
    """How to run a module; combinations that torch does not support have been refused.

    Attributes:
        pinned_memory: Loaded samples wait in pinned memory.
        proofs: Measured effects of settings of the whole process.
    """

    device: torch.device
    dtype: str
    memory_format: str
    execution: str
    training: bool
    freezing: str = "none"
    float32_precision: str = "default"
    pinned_memory: bool = False
    optimizer: str = "sgd"
    collectives: str = "default"
    proofs: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def tensor_dtype(self) -> torch.dtype:
        """The dtype of weights and inputs; 16-bit types are used through autocast."""
        return torch.float64 if self.dtype == "float64" else torch.float32

    def autocast(self) -> ContextManager[Any]:
        """Return the autocast context of one forward pass."""
        if self.dtype not in AUTOCAST_DTYPES or self.memory_format == "blocked":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, AUTOCAST_DTYPES[self.dtype])

    def place(self, tensor: Any) -> Any:
        """Move a tensor to the trial's device, dtype and memory format; return other values unchanged."""
        if not isinstance(tensor, Tensor):
            return tensor
        dtype = self.tensor_dtype if tensor.is_floating_point() else None
        tensor = tensor.to(self.device, dtype, non_blocking=self.pinned_memory)
        if self.memory_format == "channels_last" and tensor.dim() == 4:
            tensor = tensor.contiguous(memory_format=torch.channels_last)
        return tensor

    def finish(self) -> None:
        """Wait until the device has finished all work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def read_settings(params: TrialParameters, context: RankContext) -> Settings:
    """Read the settings of a trial; raise Infeasible with the reason if torch does not support them here."""
    device = find_device(params.device.value, context)
    settings = Settings(
        device=device,
        dtype=params.dtype.value,
        memory_format=params.memory_format.value,
        execution=params.execution,
        training=params.mode == Mode.TRAIN,
        freezing=params.freezing.value,
        float32_precision=params.float32_precision.value,
        pinned_memory=params.pinned_memory,
        optimizer=params.optimizer.value,
        collectives=params.collectives.value,
    )
    if settings.dtype == "float16" and device.type == "cpu":
        raise Infeasible("float16 on a CPU: torch's CPU autocast to float16 has no fast operators; use bfloat16")
    if settings.memory_format == "blocked":
        _refuse_blocked(settings, params.math.value)
    if settings.execution == "compile" and device.type == "cpu" and not any(map(shutil.which, CXX_COMPILERS)):
        raise Infeasible(f"execution compile needs a C++ compiler: none of {', '.join(CXX_COMPILERS)} is on the PATH")
    if settings.execution == "malleable":
        _refuse_malleable(settings, params)
    if settings.execution == "fast-kernels":
        _refuse_fast_kernels(settings, params.math.value)
    _refuse_freezing(settings, params.math.value)
    if settings.dtype == "int8":
        _refuse_int8(settings, params.math.value)
    if settings.float32_precision != "default" and settings.dtype != "float32":
        raise Infeasible(f"float32_precision {settings.float32_precision}: dtype is {settings.dtype}")
    return dataclasses.replace(settings, proofs={**set_numerics(params), **prove_instruction_set(params)})


def apply_to_process(params: TrialParameters, *, shares_threads: bool = False) -> None:
    """Set the threads of the process and whether torch uses oneDNN.

    shares_threads: Concurrent operators share the threads; torch would give all threads to each of them.
    """
    interop = params.interop_threads
    num_sharing = int(interop) if shares_threads and interop is not None else 1
    torch.set_num_threads(max(1, params.threads // num_sharing))
    if interop is not None and int(interop) != torch.get_num_interop_threads():
        torch.set_num_interop_threads(int(interop))
    torch.backends.mkldnn.enabled = params.math != MathKernels.VANILLA  # type: ignore[assignment]


@contextlib.contextmanager
def turn_off_onednn() -> Iterator[None]:
    """Disable oneDNN within the block."""
    before = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = before


def collect_process_facts(settings: Settings) -> dict[str, Any]:
    """Collect threads, libraries and numerical settings as torch reports them."""
    return {
        **settings.proofs,
        "num_threads": torch.get_num_threads(),
        "num_interop_threads": torch.get_num_interop_threads(),
        "onednn_enabled": bool(torch.backends.mkldnn.enabled),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "parallel_info": torch.__config__.parallel_info(),
        "openmp_libraries": _list_openmp_libraries(),
    }


def collect_gpu_facts(settings: Settings) -> dict[str, Any]:
    """Collect the GPU's name and the peak memory of tensors on it."""
    if settings.device.type != "cuda":
        return {}
    return {
        "gpu": torch.cuda.get_device_name(settings.device),
        "peak_gpu_memory_bytes": torch.cuda.max_memory_allocated(settings.device),
    }


def _list_openmp_libraries() -> list[str]:
    """List the OpenMP runtimes in the process; two of them compete for the same CPUs."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        mapped = {line.split(None, 5)[-1].strip() for line in maps if line.count("/")}
    return sorted(path for path in mapped if OPENMP_NAMES.match(path.rsplit("/", 1)[-1]))


def detect_weights_format(module: nn.Module) -> str:
    """Detect the actual memory format of the weights."""
    tensors = [*module.parameters(), *module.buffers()]
    if any(t.is_mkldnn for t in tensors):
        return "blocked"
    images = [t for t in tensors if t.dim() == 4 and t.shape[1] > 1 and t.shape[2] * t.shape[3] > 1]
    if images and all(t.is_contiguous(memory_format=torch.channels_last) for t in images):
        return "channels_last"
    if not tensors:
        return "none"
    return "contiguous" if all(t.is_contiguous() for t in tensors) else "mixed"


def find_device(name: str, context: RankContext) -> torch.device:
    """Return this rank's device and make it current; raise Infeasible if there is none."""
    if name != "cuda":
        return torch.device(name)
    if not torch.cuda.is_available():
        raise Infeasible("device cuda: torch sees no CUDA device on this machine")
    device = torch.device("cuda", context.local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def _refuse_malleable(settings: Settings, params: TrialParameters) -> None:
    reason: Optional[str] = None
    if settings.device.type != "cpu":
        reason = "it supports only the CPU"
    elif settings.training and params.num_ranks > 1:
        reason = "data-parallel processes exchange gradients during the backward pass; use one process"
    if reason is not None:
        raise Infeasible(f"execution malleable: {reason}")


def _refuse_fast_kernels(settings: Settings, math: str) -> None:
    reason: Optional[str] = None
    if settings.device.type != "cpu" or settings.dtype != "float32":
        reason = "fast kernels support only float32 on the CPU"
    elif settings.freezing != "none":
        reason = "frozen weights have their own kernels; use execution: eager"
    elif settings.memory_format == "blocked" or math == "vanilla":
        reason = "all other layers need oneDNN with plain tensors"
    elif settings.float32_precision != "default":
        reason = f"fast kernels do not support float32_precision: {settings.float32_precision}"
    if reason is not None:
        raise Infeasible(f"execution fast-kernels: {reason}")


def _refuse_freezing(settings: Settings, math: str) -> None:
    reason: Optional[str] = None
    if settings.freezing != "none" and settings.training:
        reason = "weights cannot be constants in training"
    elif settings.freezing == "full":
        if settings.execution == "malleable":
            reason = "malleable execution does not support it; use execution eager, compile or script"
        elif settings.memory_format == "blocked":
            reason = "it chooses the layout of weights; remove memory_format: blocked"
        elif settings.device.type != "cpu" or math == "vanilla" or not torch._C._has_mkldnn:
            reason = "it needs oneDNN on the CPU"
        elif settings.execution == "eager" and settings.dtype not in ("float32", "bfloat16"):
            reason = f"weights are prepared in float32 or bfloat16, not in {settings.dtype}"
        elif settings.execution == "script" and settings.dtype in AUTOCAST_DTYPES:
            reason = f"TorchScript's prepared operators do not follow autocast to {settings.dtype}"
    if reason is not None:
        raise Infeasible(f"freezing {settings.freezing}: {reason}")


def _refuse_int8(settings: Settings, math: str) -> None:
    reason: Optional[str] = None
    if settings.training:
        reason = "int8 weights cannot be trained"
    elif settings.device.type != "cpu":
        reason = "torch supports it only on the CPU"
    elif settings.execution != "eager" or settings.freezing != "none":
        reason = "its layers are already packed and folded; use execution: eager and freezing: none"
    elif settings.memory_format == "blocked" or math == "vanilla":
        reason = "it has its own kernels; remove memory_format: blocked and math: vanilla"
    if reason is not None:
        raise Infeasible(f"dtype int8: {reason}")


def _refuse_blocked(settings: Settings, math: str) -> None:
    reason: Optional[str] = None
    if settings.training:
        reason = "torch cannot train in oneDNN's blocked layout"
    elif settings.device.type != "cpu":
        reason = "it is a layout of oneDNN on the CPU"
    elif math == "vanilla" or not torch._C._has_mkldnn:
        reason = "it needs oneDNN"
    elif settings.execution != "eager":
        reason = "torch can neither compile nor script its modules; use execution: eager"
    elif settings.dtype not in ("float32", "bfloat16"):
        reason = f"it supports float32 and bfloat16, not {settings.dtype}"
    elif settings.dtype == "bfloat16" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        reason = "this CPU lacks the instructions that oneDNN needs for bfloat16 (AVX-512 or later)"
    if reason is not None:
        raise Infeasible(f"memory_format blocked: {reason}")
