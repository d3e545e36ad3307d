"""Rules for the instruction set of vendor kernels and for the optimizer of a training."""

from collections.abc import Iterator, Mapping

from corewise.measured.instruction_sets import NEEDED_FLAGS
from corewise.measured.parameters import Device, Float32Precision, Isa, Mode, Optimizer, TrialParameters
from corewise.measured.workloads.base import is_kernel
from corewise.study.planning.feasibility_context import FeasibilityContext

# Why the limit of a trial does not reach the kernels of a runtime.
_UNSUPPORTED_ISA: Mapping[str, str] = {
    "numpy": "numpy's BLAS chooses its kernels once per processor",
    "jax": "XLA's flag --xla_cpu_max_isa limits the code that it generates, not its library kernels",
    "tensorflow": "Eigen's kernels in TensorFlow are built for one instruction set, only oneDNN's can be limited",
}


def check_isa(params: TrialParameters, context: FeasibilityContext) -> Iterator[str]:
    """Check that the processor has the instruction set, and that the trial's libraries follow the limit."""
    isa, known = params.isa, context.machine.instruction_sets
    if isa == Isa.DEFAULT:
        return
    if params.device != Device.CPU:
        yield f"isa: {isa} limits CPU kernels; use device: cpu"
    if params.runtime in _UNSUPPORTED_ISA:
        yield f"isa: {isa} is for runtime: torch: {_UNSUPPORTED_ISA[params.runtime]}"
    missing = [] if known is None else [flag for flag in NEEDED_FLAGS[isa] if flag not in known]
    if missing:
        yield f"isa: {isa} needs a CPU with {', '.join(NEEDED_FLAGS[isa])}; this CPU lacks {', '.join(missing)}"
    if params.float32_precision == Float32Precision.BF16 and isa in (Isa.SSE41, Isa.AVX2, Isa.AVX512):
        yield f"float32_precision: bf16 needs isa: default, avx512_bf16 or amx, not {isa}"


def check_optimizer(params: TrialParameters, context: FeasibilityContext) -> Iterator[str]:
    """Check that there is a model that is trained."""
    if params.optimizer == Optimizer.SGD:
        return
    if params.mode != Mode.TRAIN:
        yield f"optimizer: {params.optimizer} has no effect: inference updates no weights; use mode: train"
    elif is_kernel(context.workload):
        yield f"optimizer: {params.optimizer} is for models; {params.workload} is a kernel"
