"""Explain why a point cannot be measured on a machine, with one small rule for each reason."""

from collections.abc import Iterator, Mapping
from typing import Any

from corewise.measured.parameters import (
    GENERATED_DATA,
    Binding,
    Denormals,
    Device,
    DType,
    Float32Precision,
    Freezing,
    HugePages,
    MathKernels,
    MemoryFormat,
    Mode,
    OpenMP,
    PlacementPolicy,
    TrialParameters,
)
from corewise.measured.workloads.base import Traits, Workload, describe_traits, is_kernel
from corewise.measured.workloads.primitives.benchdnn import explain_missing_program, is_executable
from corewise.measured.workloads.primitives.memory_demand import AVAILABLE
from corewise.study.axes import AXES
from corewise.study.planning.feasibility_context import FeasibilityContext as FeasibilityContext
from corewise.study.planning.feasibility_context import MachineView as MachineView
from corewise.study.planning.feasibility_context import Rule
from corewise.study.planning.training_rules import explain_training
from corewise.study.planning.vendor_kernel_rules import check_isa, check_optimizer

# CPU flags of /proc/cpuinfo with which oneDNN computes float32 products in reduced precision.
REDUCED_PRECISION_FLAGS = {"bf16": ("amx_bf16", "bf16", "svebf16"), "tf32": ("amx_fp16",)}


# Far beyond any machine, in elements or bytes. Products of such arguments are still finite.
MAX_ARGUMENT = 10**15
# A size may be this many times its default. More layers, say, would take long just to be counted.
MAX_TIMES_DEFAULT = 10_000


def explain_infeasibility(params: TrialParameters, context: FeasibilityContext) -> tuple[str, ...]:
    """Return all reasons why the point cannot be measured on this machine; empty if it can."""
    # The other rules compute sizes from the arguments, which takes time or overflows if they are enormous.
    enormous = tuple(_find_enormous_arguments(params, context))
    return enormous or tuple(reason for rule in RULES for reason in rule(params, context))


def _find_enormous_arguments(params: TrialParameters, context: FeasibilityContext) -> Iterator[str]:
    """Yield the arguments that are far beyond any machine; a user's own workload has none."""
    if context.workload is None:
        return
    for name, value in params.arguments.items():
        default = context.workload.parameters.get(name)
        limit = MAX_ARGUMENT
        if isinstance(default, int) and default > 0:
            limit = min(limit, MAX_TIMES_DEFAULT * default)
        if isinstance(value, int | float) and abs(value) > limit:
            yield f"args.{name} must be at most {limit:,} in {context.workload.name}"


def _check_support(params: TrialParameters, context: FeasibilityContext) -> Iterator[str]:
    """Check that the workload supports the mode, the runtime and concurrent operators."""
    workload = context.workload
    if workload is None:
        return
    if params.mode not in workload.modes:
        yield f"{workload.name} has no mode {params.mode}; it has {', '.join(workload.modes)}"
    if params.runtime not in workload.runtimes:
        yield f"{workload.name} has no runtime {params.runtime}; it has {', '.join(workload.runtimes)}"
    if params.interop_threads is not None and not workload.concurrent:
        yield f"interop_threads has no effect: nothing in {workload.name} runs concurrently; leave it null"


def _check_branches(params: TrialParameters, context: FeasibilityContext) -> Iterator[str]:
    """Check concurrent branches against what the workload needs for them."""
    num_branches = params.interop_threads
    if num_branches is None:
        return
    execution = _find_traits(params, context).concurrent_under
    if execution is None:
        return
    if params.execution != execution:
        yield f"interop_threads needs execution: {execution}; others run branches one after another"
    if num_branches > params.threads and not params.oversubscribe:
        yield (
            f"interop_threads {num_branches} share {_format_count(params.threads, 'thread')}; "
            "use fewer, or set oversubscribe: true"
        )


def _check_images(params: TrialParameters, context: FeasibilityContext) -> Iterator[str]:
    """Check that settings for images are used with images."""
    for name in ("memory_format", "data"):
        if name == "data" and params.data in GENERATED_DATA:
            continue
        if not params.is_default(name) and _find_traits(params, context).takes_images is False:
            yield f"{name}: {getattr(params, name)} is for images; {params.workload} takes none"


def _check_cores(params: TrialParameters, context: FeasibilityContext) -> Iterator[str]:
    """Check that all threads fit on the allocation."""
    machine, num_reserved = context.machine, params.reserved_cores
    num_usable = machine.count_usable(smt=params.smt, num_reserved_cores=num_reserved)
    if num_reserved >= machine.num_cores:
        cores = _format_count(machine.num_cores, "core")
        yield f"reserved_cores {num_reserved} leaves none of the allocation's {cores}"
        return
    num_needed = params.processes * params.threads
    if num_needed <= num_usable or params.oversubscribe:
        return
    unit = "CPU" if params.smt else "core"
    reserved = f" ({num_reserved} reserved)" if num_reserved else ""
    yield (
        f"{_format_count(params.processes, 'process')} × {_format_count(params.threads, 'thread')} need "
        f"{_format_count(num_needed, unit)}; the allocation has {num_usable}{reserved}; "
        "use fewer, or set oversubscribe: true"
    )


def _check_training(params: TrialParameters, context: FeasibilityContext) -> Iterator[str]:
    """Check the batch of each process and the settings of data-parallel training."""
    return explain_training(params, is_kernel=is_kernel(context.workload))


def _check_nodes(params: TrialParameters, context: FeasibilityContext) -> Iterator[str]:
    """Check that the run has as many nodes as the point needs."""
    num_nodes = context.machine.num_nodes
    if num_nodes is not None and params.nodes > num_nodes:
        yield (
            f"{params.nodes} nodes: this run has {num_nodes}; "
            "add --on slurm, or --on mpirun --hostfile FILE, with --nodes"
        )


def _check_kernel(params: TrialParameters, context: FeasibilityContext) -> Iterator[str]:
    """Check what differs for kernels: they have other number formats, no batches and no executions."""
    kernel: Any = context.workload
    if not is_kernel(kernel):
        if params.dtype.startswith("complex"):
            yield f"dtype: {params.dtype} is for kernels, for example fft"
        return
    if params.batch != 1:
        yield f"batch {params.batch}: a step of {kernel.name} is one sample; omit batch, or set it to 1"
    for name in ("memory_format", "execution", "freezing", "data"):
        if not params.is_default(name):
            yield f"{name}: {getattr(params, name)} is for models; {kernel.name} is a kernel"
    try:
        dtypes = kernel.list_dtypes({**kernel.parameters, **params.arguments})
    except ValueError:
        # `_check_arguments` reports invalid arguments.
        return
    if params.dtype not in dtypes:
        yield f"{kernel.name} has no dtype {params.dtype}; it has {', '.join(dtypes)}"


def _check_primitive(params: TrialParameters, context: FeasibilityContext) -> Iterator[str]:
    """Check what a single-operator workload rejects."""
    if context.workload is None:
        return
    try:
        reason = context.workload.explain_refusal(params)
    except ValueError:
        return
    if reason is not None:
        yield reason
    program = params.arguments.get("benchdnn")
    if program and not is_executable(str(program)):
        yield f"args.benchdnn: {explain_missing_program(str(program))}"


def _check_memory(params: TrialParameters, context: FeasibilityContext) -> Iterator[str]:
    """Check that the tensors of all processes fit into the host's memory."""
    if context.workload is None or params.device != Device.CPU or not context.machine.memory_bytes:
        return
    try:
        reason = context.workload.explain_memory_shortage(
            params, context.machine.memory_bytes // params.processes, AVAILABLE
        )
    except ValueError:
        return
    if reason is not None:
        yield reason


def _check_device(params: TrialParameters, context: FeasibilityContext) -> Iterator[str]:
    """Check the limits of the device."""
    machine = context.machine
    if params.device == Device.CPU:
        if params.dtype == DType.FLOAT16:
            yield "float16 is not supported on device: cpu; use bfloat16"
        return
    if machine.has_cuda is False:
        yield "this machine has no CUDA device; use device: cpu"
    elif machine.num_gpus is not None and params.processes > machine.num_gpus:
        yield f"{params.processes} processes need a GPU each; this machine has {machine.num_gpus}"
    for name in ("openmp", "wait_policy"):
        if not params.is_default(name):
            yield f"{name} has no effect on device: cuda; leave it default"


def _check_int8(params: TrialParameters, context: FeasibilityContext) -> Iterator[str]:
    """Check the limits of int8 models in torch."""
    if params.dtype != DType.INT8 or params.runtime != "torch" or is_kernel(context.workload):
        return
    if params.mode == Mode.TRAIN:
        yield "dtype: int8 is for inference only: int8 weights cannot be trained"
    if params.device != Device.CPU:
        yield "dtype: int8 is for device: cpu: torch quantises for the CPU only"
    if params.execution != "eager" or params.freezing != Freezing.NONE:
        yield "dtype: int8 includes packed weights and folded norms; leave execution: eager and freezing: none"
    if params.memory_format == MemoryFormat.BLOCKED or params.math == MathKernels.VANILLA:
        yield "dtype: int8 uses separate kernels; do not set memory_format: blocked or math: vanilla"


def _check_gpu(params: TrialParameters, context: FeasibilityContext) -> Iterator[str]:
    """Check settings that need a GPU."""
    if params.placement == PlacementPolicy.GPU and not context.machine.cores_near_gpu:
        yield "placement: gpu needs a GPU whose NUMA node is known, with cores of the allocation on it"
    if not params.pinned_memory:
        return
    if params.device != Device.CUDA:
        yield "pinned_memory is for device: cuda; without a GPU nothing is copied"
    elif params.data in GENERATED_DATA:
        yield f"pinned_memory has no effect: {params.data} data are already on the GPU"


def _check_onednn(params: TrialParameters, context: FeasibilityContext) -> Iterator[str]:
    """Check that oneDNN is used at all, and the limits of its blocked layout."""
    uses_onednn = params.device == Device.CPU and params.runtime in ("torch", "tensorflow")
    if params.math == MathKernels.VANILLA and not uses_onednn:
        yield f"math: vanilla disables oneDNN, which {params.runtime} on {params.device} does not use"
    if params.memory_format != MemoryFormat.BLOCKED or params.runtime in _UNSUPPORTED_AXES:
        return
    if not uses_onednn:
        yield f"memory_format: blocked needs oneDNN, which {params.runtime} on {params.device} does not use"
    if params.mode == Mode.TRAIN:
        yield "memory_format: blocked is for inference only: blocked weights cannot be trained"
    if params.math == MathKernels.VANILLA:
        yield "memory_format: blocked needs oneDNN, which math: vanilla disables"


def _check_freezing(params: TrialParameters, context: FeasibilityContext) -> Iterator[str]:
    """Check the limits of constant weights."""
    freezing, execution = params.freezing, params.execution
    if freezing == Freezing.NONE or params.runtime != "torch":
        return
    if params.mode == Mode.TRAIN:
        yield f"freezing: {freezing} is for inference only: trained weights cannot be constant"
    if freezing == Freezing.FOLD:
        if _find_traits(params, context).has_batch_norm is False:
            yield f"freezing: fold has nothing to fold: {params.workload} has no batch normalisation"
        return
    if execution == "malleable":
        yield "freezing: full needs execution: eager, compile or script"
    if params.memory_format == MemoryFormat.BLOCKED:
        yield "freezing: full chooses the layout of weights; do not set memory_format: blocked"
    if execution == "eager" and params.dtype not in (DType.FLOAT32, DType.BFLOAT16, DType.INT8):
        yield f"freezing: full prepares weights in float32 or bfloat16; dtype is {params.dtype}"
    if params.device != Device.CPU or params.math == MathKernels.VANILLA:
        yield "freezing: full prepares weights for oneDNN, which needs device: cpu and math: vendor"
    if execution == "script" and params.dtype in (DType.BFLOAT16, DType.FLOAT16):
        yield f"freezing: full under execution: script does not support dtype: {params.dtype}; use eager"


def _check_fast_kernels(params: TrialParameters, context: FeasibilityContext) -> Iterator[str]:
    """Check the limits of Corewise's fast kernels."""
    if params.execution != "fast-kernels" or params.runtime != "torch":
        return
    traits = _find_traits(params, context)
    if traits.has_fast_kernels is False:
        yield f"execution: fast-kernels has no kernel for any layer of {params.workload}"
    elif traits.takes_images and params.memory_format != MemoryFormat.CHANNELS_LAST:
        yield "execution: fast-kernels needs images in channels_last; set memory_format: channels_last"
    if params.device != Device.CPU or params.dtype != DType.FLOAT32:
        yield "execution: fast-kernels supports float32 on the CPU only"
    if params.math == MathKernels.VANILLA or params.float32_precision != Float32Precision.DEFAULT:
        yield (
            "execution: fast-kernels uses oneDNN's float32 for all other layers; do not set math or float32_precision"
        )
    if params.freezing != Freezing.NONE:
        yield f"freezing: {params.freezing} uses other kernels; leave execution: eager"


def _check_malleable(params: TrialParameters, context: FeasibilityContext) -> Iterator[str]:
    """Check the limits of thread widths that change while a model runs."""
    if params.execution != "malleable" or params.runtime != "torch":
        return
    if params.device != Device.CPU:
        yield "execution: malleable changes the number of CPU threads; use device: cpu"
    if params.mode == Mode.TRAIN and params.num_ranks > 1:
        yield "execution: malleable trains in one process only; set processes: 1"
    if params.bind == Binding.CORE:
        yield "execution: malleable pins its own threads; leave bind: rank"
    if params.openmp == OpenMP.LIBIOMP5:
        yield "execution: malleable needs torch's libgomp; leave openmp: default"


def _check_precision(params: TrialParameters, context: FeasibilityContext) -> Iterator[str]:
    """Check the precision of float32 products and the handling of denormals in torch."""
    precision, on_cuda = params.float32_precision, params.device == Device.CUDA
    if params.runtime != "torch":
        return
    if params.denormals == Denormals.FLUSH and on_cuda:
        yield "denormals has no effect on device: cuda; leave it default"
    if precision == Float32Precision.DEFAULT:
        return
    if params.dtype != DType.FLOAT32:
        yield f"float32_precision: {precision} has no effect: dtype is {params.dtype}"
    if on_cuda:
        if precision != Float32Precision.TF32:
            yield f"float32_precision: {precision} does not exist on device: cuda; use tf32"
        return
    if params.math == MathKernels.VANILLA:
        yield f"float32_precision: {precision} needs oneDNN, which math: vanilla disables"
    known, needed = context.machine.instruction_sets, REDUCED_PRECISION_FLAGS[precision]
    if known is not None and not known.intersection(needed):
        yield f"float32_precision: {precision} needs a CPU with {' or '.join(needed)}; this CPU has neither"


def _check_huge_pages(params: TrialParameters, context: FeasibilityContext) -> Iterator[str]:
    if params.huge_pages == HugePages.TRANSPARENT and context.machine.transparent_huge_pages == "never":
        yield "huge_pages: transparent is disabled in the kernel; `corewise doctor` shows how to enable it"


_TORCH_ONLY_AXES = (
    *("memory_format", "execution", "freezing", "denormals", "openmp", "optimizer"),
    *("data", "loader_workers", "pinned_memory"),
)
# The axes of which a runtime supports only the default.
_UNSUPPORTED_AXES: Mapping[str, tuple[str, ...]] = {
    "numpy": ("device", "dtype", *_TORCH_ONLY_AXES, "float32_precision", "interop_threads"),
    "jax": (*_TORCH_ONLY_AXES, "wait_policy", "interop_threads"),
    "tensorflow": (*_TORCH_ONLY_AXES, "wait_policy"),
}


def _check_runtime_axes(params: TrialParameters, context: FeasibilityContext) -> Iterator[str]:
    """Check that the runtime supports settings which differ from the default."""
    runtime = params.runtime
    for name in _UNSUPPORTED_AXES.get(runtime, ()):
        # The arrays of a kernel support more formats than the models of a runtime.
        if name == "dtype" and is_kernel(context.workload):
            continue
        value = getattr(params, name)
        if not params.is_default(name) and value != DType.FLOAT64:
            default = AXES[name].default or "null"
            yield f"the {runtime} runtime has no {name}: {value}; leave it {default}"


def _check_xla(params: TrialParameters, context: FeasibilityContext) -> Iterator[str]:
    """Check the limits of JAX and TensorFlow for precision and thread binding."""
    runtime, device, precision = params.runtime, params.device, params.float32_precision
    if runtime not in ("jax", "tensorflow"):
        return
    if precision != Float32Precision.DEFAULT:
        if params.dtype != DType.FLOAT32:
            yield f"float32_precision: {precision} has no effect: dtype is {params.dtype}"
        elif (precision, device) != (Float32Precision.TF32, Device.CUDA):
            yield f"{runtime} has no float32_precision: {precision} on {device}; it has tf32 on cuda"
    if params.bind == Binding.CORE and params.threads > 1:
        yield (
            f"bind: core is not possible: {runtime} keeps more threads than compute at a time, and any "
            "of them may run next; use bind: rank"
        )


def _check_libraries(params: TrialParameters, context: FeasibilityContext) -> Iterator[str]:
    """Check that libraries to preload are installed."""
    for name in ("allocator", "openmp"):
        library = getattr(params, name)
        if library in ("default", "retain") or library in context.machine.libraries:
            continue
        hint = context.hints.get(library, "`corewise doctor` shows how to install it")
        yield f"{name}: {library} is not installed; {hint}"


def _check_loading(params: TrialParameters, context: FeasibilityContext) -> Iterator[str]:
    if params.loader_workers and params.data in GENERATED_DATA:
        yield f"loader_workers: {params.loader_workers} has nothing to load: data is {params.data}"


def _check_arguments(params: TrialParameters, context: FeasibilityContext) -> Iterator[str]:
    """Check that the workload accepts its arguments."""
    if context.workload is None or params.mode not in context.workload.modes:
        return
    args = params.arguments
    cache_key = f"{params.mode} {sorted(args.items())}"
    if cache_key not in context.cached_refusals:
        context.cached_refusals[cache_key] = _explain_refusal(context.workload, params.mode, args)
    if context.cached_refusals[cache_key]:
        yield context.cached_refusals[cache_key]


def _explain_refusal(workload: Workload, mode: str, args: Mapping[str, Any]) -> str:
    try:
        workload.count_work(mode, args)
    except ValueError as error:
        return str(error)
    return ""


RULES: tuple[Rule, ...] = (
    _check_support,
    _check_kernel,
    _check_primitive,
    _check_memory,
    _check_branches,
    _check_images,
    _check_cores,
    _check_training,
    _check_nodes,
    _check_device,
    _check_int8,
    _check_gpu,
    _check_onednn,
    check_isa,
    check_optimizer,
    _check_freezing,
    _check_fast_kernels,
    _check_malleable,
    _check_precision,
    _check_huge_pages,
    _check_runtime_axes,
    _check_xla,
    _check_libraries,
    _check_loading,
    _check_arguments,
)


def _find_traits(params: TrialParameters, context: FeasibilityContext) -> Traits:
    """Return the workload's traits; unknown traits if its arguments are invalid."""
    args = params.arguments
    cache_key = repr(sorted(args.items()))
    if cache_key not in context.cached_traits:
        try:
            context.cached_traits[cache_key] = describe_traits(context.workload, args)
        except ValueError:
            context.cached_traits[cache_key] = Traits()
    return context.cached_traits[cache_key]


def _format_count(count: int, noun: str) -> str:
    plural = noun + ("es" if noun.endswith("s") else "s")
    return f"{count} {noun if count == 1 else plural}"
