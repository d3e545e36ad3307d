"""A trial's parameters as torch understands them, and what torch says of itself.

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

from corewise.runtimes.base import Infeasible, RankContext
from corewise.runtimes.torch.numerics import set_numerics

AUTOCAST_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
OPENMP_NAMES = re.compile(r"lib(gomp|iomp5|omp)\b")
CXX_COMPILERS = ("g++", "clang++", "c++")


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a module is to be run; every point that does not exist has been refused."""

    device: torch.device
    dtype: str
    memory_format: str
    execution: str
    training: bool
    freezing: str = "none"
    float32_precision: str = "default"
    pinned_memory: bool = False  # loaded samples wait where the GPU fetches them by itself
    proofs: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # of what holds for the process

    @property
    def tensor_dtype(self) -> torch.dtype:
        """Of weights and inputs; the 16-bit types are reached by autocast, as users do."""
        return torch.float64 if self.dtype == "float64" else torch.float32

    def autocast(self) -> ContextManager[Any]:
        """A context for one forward pass."""
        if self.dtype not in AUTOCAST_DTYPES or self.memory_format == "blocked":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, AUTOCAST_DTYPES[self.dtype])

    def place(self, tensor: Any) -> Any:
        """The tensor on the device, in the trial's dtype and memory format; anything else as it is."""
        if not isinstance(tensor, Tensor):
            return tensor
        dtype = self.tensor_dtype if tensor.is_floating_point() else None
        tensor = tensor.to(self.device, dtype, non_blocking=self.pinned_memory)
        if self.memory_format == "channels_last" and tensor.dim() == 4:
            tensor = tensor.contiguous(memory_format=torch.channels_last)
        return tensor

    def finish(self) -> None:
        """Returns when the device has done everything it was told."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def read_settings(params: Mapping[str, Any], context: RankContext) -> Settings:
    """The settings of a trial; raises Infeasible with the reason where torch has no such thing here."""
    device = find_device(str(params["device"]), context)
    settings = Settings(
        device=device,
        dtype=str(params["dtype"]),
        memory_format=str(params["memory_format"]),
        execution=str(params["execution"]),
        training=params["mode"] == "train",
        freezing=str(params.get("freezing", "none")),
        float32_precision=str(params.get("float32_precision", "default")),
        pinned_memory=bool(params.get("pinned_memory", False)),
    )
    if settings.dtype == "float16" and device.type == "cpu":
        raise Infeasible(
            "float16 on a CPU: torch's CPU autocast to float16 has no fast operators; use bfloat16"
        )
    if settings.memory_format == "blocked":
        _refuse_blocked(settings, str(params["math"]))
    if settings.execution == "compile" and device.type == "cpu" and not any(map(shutil.which, CXX_COMPILERS)):
        raise Infeasible(
            f"execution compile needs a C++ compiler: none of {', '.join(CXX_COMPILERS)} is on the PATH"
        )
    if settings.execution == "malleable":
        _refuse_malleable(settings, params)
    if settings.execution == "quickened":
        _refuse_quickened(settings, str(params["math"]))
    _refuse_freezing(settings, str(params["math"]))
    if settings.dtype == "int8":
        _refuse_int8(settings, str(params["math"]))
    if settings.float32_precision != "default" and settings.dtype != "float32":
        raise Infeasible(f"float32_precision {settings.float32_precision}: dtype is {settings.dtype}")
    return dataclasses.replace(settings, proofs=set_numerics(params))


def apply_to_process(params: Mapping[str, Any], *, shares_threads: bool = False) -> None:
    """Set what holds for the whole process: threads, and whether oneDNN computes.

    Where asked, operators that run side by side share the process's threads; torch would give each so many.
    """
    interop = params["interop_threads"]
    num_sharing = int(interop) if shares_threads and interop is not None else 1
    torch.set_num_threads(max(1, int(params["threads"]) // num_sharing))
    if interop is not None and int(interop) != torch.get_num_interop_threads():
        torch.set_num_interop_threads(int(interop))
    torch.backends.mkldnn.enabled = params["math"] != "vanilla"


@contextlib.contextmanager
def onednn_off() -> Iterator[None]:
    """oneDNN leaves the work to torch's own operators."""
    before = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = before


def process_facts(settings: Settings) -> dict[str, Any]:
    """Threads, libraries and numbers, read back from torch."""
    return {
        **settings.proofs,
        "num_threads": torch.get_num_threads(),
        "num_interop_threads": torch.get_num_interop_threads(),
        "onednn_enabled": bool(torch.backends.mkldnn.enabled),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "parallel_info": torch.__config__.parallel_info(),
        "openmp_libraries": _openmp_libraries(),
    }


def gpu_facts(settings: Settings) -> dict[str, Any]:
    """The GPU and the most memory that tensors took on it."""
    if settings.device.type != "cuda":
        return {}
    return {
        "gpu": torch.cuda.get_device_name(settings.device),
        "peak_gpu_memory_bytes": torch.cuda.max_memory_allocated(settings.device),
    }


def _openmp_libraries() -> list[str]:
    """The OpenMP runtimes in the process; two of them fight for the same CPUs."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        mapped = {line.split(None, 5)[-1].strip() for line in maps if line.count("/")}
    return sorted(path for path in mapped if OPENMP_NAMES.match(path.rsplit("/", 1)[-1]))


def weights_format(module: nn.Module) -> str:
    """The memory format the weights are really in."""
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
    """This rank's device, made the current one; raises Infeasible where there is none."""
    if name != "cuda":
        return torch.device(name)
    if not torch.cuda.is_available():
        raise Infeasible("device cuda: torch sees no CUDA device here")
    device = torch.device("cuda", context.rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def _refuse_malleable(settings: Settings, params: Mapping[str, Any]) -> None:
    reason: Optional[str] = None
    if settings.device.type != "cpu":
        reason = "it changes the widths of CPU threads"
    elif settings.training and int(params["processes"]) > 1:
        reason = "processes that train together exchange gradients in the middle of it"
    if reason is not None:
        raise Infeasible(f"execution malleable: {reason}")


def _refuse_quickened(settings: Settings, math: str) -> None:
    reason: Optional[str] = None
    if settings.device.type != "cpu" or settings.dtype != "float32":
        reason = "our own kernels compute float32 on the CPU"
    elif settings.freezing != "none":
        reason = "frozen weights bring kernels of their own; leave execution: eager"
    elif settings.memory_format == "blocked" or math == "vanilla":
        reason = "the rest is oneDNN's, of plain tensors"
    elif settings.float32_precision != "default":
        reason = f"our own kernels know no float32_precision: {settings.float32_precision}"
    if reason is not None:
        raise Infeasible(f"execution quickened: {reason}")


def _refuse_freezing(settings: Settings, math: str) -> None:
    reason: Optional[str] = None
    if settings.freezing != "none" and settings.training:
        reason = "weights that are trained cannot be constants"
    elif settings.freezing == "full":
        if settings.execution == "malleable":
            reason = "malleable execution has no constants; it needs eager, compile or script"
        elif settings.memory_format == "blocked":
            reason = "it lays out weights by itself; leave memory_format: blocked out"
        elif settings.device.type != "cpu" or math == "vanilla" or not torch._C._has_mkldnn:
            reason = "weights are prepared for oneDNN, on the CPU"
        elif settings.execution == "eager" and settings.dtype not in ("float32", "bfloat16"):
            reason = f"weights are prepared in float32 or bfloat16, not in {settings.dtype}"
        elif settings.execution == "script" and settings.dtype in AUTOCAST_DTYPES:
            reason = f"TorchScript's prepared operators do not follow autocast to {settings.dtype}"
    if reason is not None:
        raise Infeasible(f"freezing {settings.freezing}: {reason}")


def _refuse_int8(settings: Settings, math: str) -> None:
    reason: Optional[str] = None
    if settings.training:
        reason = "whole numbers cannot be trained"
    elif settings.device.type != "cpu":
        reason = "torch quantises for the CPU"
    elif settings.execution != "eager" or settings.freezing != "none":
        reason = "its layers are compiled and folded already; leave execution and freezing as they are"
    elif settings.memory_format == "blocked" or math == "vanilla":
        reason = "it has kernels of its own"
    if reason is not None:
        raise Infeasible(f"dtype int8: {reason}")


def _refuse_blocked(settings: Settings, math: str) -> None:
    reason: Optional[str] = None
    if settings.training:
        reason = "torch trains no networks in oneDNN's blocked layout"
    elif settings.device.type != "cpu":
        reason = "it is a layout of oneDNN on the CPU"
    elif math == "vanilla" or not torch._C._has_mkldnn:
        reason = "it needs oneDNN"
    elif settings.execution != "eager":
        reason = "it is made of modules that cannot be compiled again"
    elif settings.dtype not in ("float32", "bfloat16"):
        reason = f"oneDNN computes float32 and bfloat16 in it, not {settings.dtype}"
    elif settings.dtype == "bfloat16" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        reason = "this CPU lacks the instructions oneDNN asks for in bfloat16"
    if reason is not None:
        raise Infeasible(f"memory_format blocked: {reason}")
