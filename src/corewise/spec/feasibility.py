"""Why a point cannot be measured on a machine: one small rule for each reason."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from corewise.spec.axes import AXES
from corewise.workloads.base import Traits, Workload, is_kernel, traits_of, workload_args
from corewise.workloads.primitives.benchdnn import is_program, no_program
from corewise.workloads.primitives.memory_demand import THERE

# Of /proc/cpuinfo: instructions by which oneDNN computes float32 products in fewer digits.
SHORT_PRODUCTS = {"bf16": ("amx_bf16", "bf16", "svebf16"), "tf32": ("amx_fp16",)}


@dataclass(frozen=True)
class MachineView:
    """The few facts of a machine that axes, constraints and feasibility speak of."""

    num_cores: int  # physical cores of the allocation
    num_cpus: int  # logical CPUs of the allocation
    num_numa_nodes: int = 1
    num_sockets: int = 1
    has_cuda: bool | None = None  # None: not known
    libraries: frozenset[str] = frozenset()  # of tcmalloc, jemalloc, libiomp5, libgomp
    memory_bytes: int = 0
    num_gpus: int | None = None  # None: not known
    instruction_sets: frozenset[str] | None = None  # None: not known
    cores_near_gpu: int = 0  # cores of the allocation on the first GPU's NUMA node; 0: not known
    transparent_huge_pages: str = ""  # always | madvise | never; empty: not known

    def allocation(self, *, smt: bool, num_reserved_cores: int) -> int:
        """Cores (CPUs with `smt`) left when some are reserved; may be less than one."""
        if not smt:
            return self.num_cores - num_reserved_cores
        return self.num_cpus - num_reserved_cores * (self.num_cpus // self.num_cores)


@dataclass(frozen=True)
class Circumstances:
    """What a point is judged by, beyond its own parameters."""

    machine: MachineView
    workload: Workload | None = None  # None: the user's own, of which nothing is known beforehand
    hints: Mapping[str, str] = field(default_factory=dict)  # library -> how to install it
    # Seen before, by the workload's arguments: counting a model's work and looking through it take time.
    refusals: dict[str, str] = field(default_factory=dict)
    traits: dict[str, Traits] = field(default_factory=dict)


Params = Mapping[str, Any]
Rule = Callable[[Params, Circumstances], Iterator[str]]


def reasons_against(params: Params, circumstances: Circumstances) -> tuple[str, ...]:
    """Every reason why the point does not exist here; none means it can be measured."""
    return tuple(reason for rule in RULES for reason in rule(params, circumstances))


def _offered(params: Params, here: Circumstances) -> Iterator[str]:
    """What the workload itself offers."""
    workload = here.workload
    if workload is None:
        return
    if params["mode"] not in workload.modes:
        yield f"{workload.name} has no mode {params['mode']}; it has {', '.join(workload.modes)}"
    if params["runtime"] not in workload.runtimes:
        yield f"{workload.name} has no runtime {params['runtime']}; it has {', '.join(workload.runtimes)}"
    if params["interop_threads"] is not None and not workload.concurrent:
        yield f"interop_threads has no effect: nothing in {workload.name} runs concurrently; leave it null"


def _side_by_side(params: Params, here: Circumstances) -> Iterator[str]:
    """Branches that run side by side, where a workload says what it takes."""
    num_branches = params["interop_threads"]
    execution = None if num_branches is None else _traits(params, here).concurrent_under
    if execution is None:
        return
    if params["execution"] != execution:
        yield f"interop_threads needs execution: {execution}; branches run one after another in others"
    if num_branches > params["threads"] and not params["oversubscribe"]:
        yield (
            f"interop_threads {num_branches} share {_many(params['threads'], 'thread')}; "
            "use fewer, or set oversubscribe: true"
        )


def _images(params: Params, here: Circumstances) -> Iterator[str]:
    """What only images have."""
    for name in ("memory_format", "data"):
        if params[name] != AXES[name].default and _traits(params, here).takes_images is False:
            yield f"{name}: {params[name]} is for images; {params['workload']} takes none"


def _cores(params: Params, here: Circumstances) -> Iterator[str]:
    """Threads fit on the allocation."""
    machine, num_reserved = here.machine, params["reserved_cores"]
    num_usable = machine.allocation(smt=params["smt"], num_reserved_cores=num_reserved)
    if num_reserved >= machine.num_cores:
        cores = _many(machine.num_cores, "core")
        yield f"reserved_cores {num_reserved} leaves none of the allocation's {cores}"
        return
    num_needed = params["processes"] * params["threads"]
    if num_needed <= num_usable or params["oversubscribe"]:
        return
    unit = "CPU" if params["smt"] else "core"
    reserved = f" ({num_reserved} reserved)" if num_reserved else ""
    yield (
        f"{_many(params['processes'], 'process')} × {_many(params['threads'], 'thread')} need "
        f"{_many(num_needed, unit)}; the allocation has {num_usable}{reserved}; "
        "use fewer, or set oversubscribe: true"
    )


def _batch(params: Params, here: Circumstances) -> Iterator[str]:
    if params["batch_scope"] == "global" and params["batch"] % params["processes"]:
        yield f"a global batch of {params['batch']} is no multiple of {params['processes']} processes"


def _kernel(params: Params, here: Circumstances) -> Iterator[str]:
    """A kernel has number formats of its own, but no batches and no ways to be executed."""
    kernel: Any = here.workload
    if not is_kernel(kernel):
        if params["dtype"].startswith("complex"):
            yield f"dtype: {params['dtype']} is for kernels such as fft"
        return
    if params["batch"] != 1:
        yield f"batch {params['batch']}: a step of {kernel.name} is one sample; leave batch out, or 1"
    for name in ("memory_format", "execution", "freezing", "data"):
        if params[name] != AXES[name].default:
            yield f"{name}: {params[name]} is for models; {kernel.name} is a kernel"
    try:
        dtypes = kernel.dtypes({**kernel.parameters, **workload_args(params)})
    except ValueError:  # told by another rule
        return
    if params["dtype"] not in dtypes:
        yield f"{kernel.name} has no dtype {params['dtype']}; it has {', '.join(dtypes)}"


def _primitive(params: Params, here: Circumstances) -> Iterator[str]:
    """What a workload of a single operator refuses by itself."""
    refusal = getattr(here.workload, "refusal", None)
    if refusal is None:
        return
    try:
        reason = refusal(params)
    except ValueError:  # told by another rule
        return
    if reason is not None:
        yield reason
    program = params.get("args.benchdnn")
    if program and not is_program(str(program)):
        yield f"args.benchdnn: {no_program(str(program))}"


def _room(params: Params, here: Circumstances) -> Iterator[str]:
    """A single operator's tensors fit into the host's memory, which processes share."""
    lack_of_memory = getattr(here.workload, "lack_of_memory", None)
    if lack_of_memory is None or params["device"] != "cpu" or not here.machine.memory_bytes:
        return
    try:
        reason = lack_of_memory(params, here.machine.memory_bytes // params["processes"], THERE)
    except ValueError:  # told by another rule
        return
    if reason is not None:
        yield reason


def _device(params: Params, here: Circumstances) -> Iterator[str]:
    """What the device allows."""
    machine = here.machine
    if params["device"] == "cpu":
        if params["dtype"] == "float16":
            yield "float16 is not measured on the cpu; bfloat16 is the short format there"
        return
    if machine.has_cuda is False:
        yield "this machine has no CUDA device"
    elif machine.num_gpus is not None and params["processes"] > machine.num_gpus:
        yield f"{params['processes']} processes need a GPU each; this machine has {machine.num_gpus}"
    for name in ("openmp", "wait_policy"):
        if params[name] != "default":
            yield f"{name} does not matter on device cuda; leave it default"


def _int8(params: Params, here: Circumstances) -> Iterator[str]:
    """Where torch computes in whole numbers."""
    if params["dtype"] != "int8" or params["runtime"] != "torch" or is_kernel(here.workload):
        return
    if params["mode"] == "train":
        yield "dtype: int8 is for inference only: whole numbers cannot be trained"
    if params["device"] != "cpu":
        yield "dtype: int8 is for device: cpu; torch quantises for the CPU"
    if params["execution"] != "eager" or params["freezing"] != "none":
        yield "dtype: int8 brings compiled and folded layers; leave execution eager and freezing none"
    if params["memory_format"] == "blocked" or params["math"] == "vanilla":
        yield "dtype: int8 has kernels of its own; leave memory_format blocked and math vanilla out"


def _gpu(params: Params, here: Circumstances) -> Iterator[str]:
    """What only exists beside a GPU."""
    if params["placement"] == "gpu" and not here.machine.cores_near_gpu:
        yield "placement: gpu needs a GPU whose NUMA node is known, with cores of the allocation on it"
    if not params["pinned_memory"]:
        return
    if params["device"] != "cuda":
        yield "pinned_memory is for device: cuda; no GPU fetches anything"
    elif params["data"] == "synthetic":
        yield "pinned_memory has nothing to fetch: synthetic data lie on the GPU already"


def _onednn(params: Params, here: Circumstances) -> Iterator[str]:
    """Where oneDNN is used at all, and what its own layout allows."""
    used = params["device"] == "cpu" and params["runtime"] in ("torch", "tensorflow")
    if params["math"] == "vanilla" and not used:
        yield f"math: vanilla switches off oneDNN, unused by {params['runtime']} on {params['device']}"
    if params["memory_format"] != "blocked" or params["runtime"] in _LACKS:
        return
    if not used:
        yield f"memory_format: blocked is oneDNN's, unused by {params['runtime']} on {params['device']}"
    if params["mode"] == "train":
        yield "memory_format: blocked is for inference only: blocked weights cannot be trained"
    if params["math"] == "vanilla":
        yield "memory_format: blocked needs oneDNN, which math: vanilla switches off"


def _freezing(params: Params, here: Circumstances) -> Iterator[str]:
    """Weights that do not change."""
    freezing, execution = params["freezing"], params["execution"]
    if freezing == "none" or params["runtime"] != "torch":
        return
    if params["mode"] == "train":
        yield f"freezing: {freezing} is for inference only: weights that are trained cannot be constants"
    if freezing == "fold":
        if _traits(params, here).has_batch_norm is False:
            yield f"freezing: fold has nothing to fold: {params['workload']} has no batch normalisation"
        return
    if execution == "malleable":
        yield "freezing: full needs execution: eager, compile or script"
    if params["memory_format"] == "blocked":
        yield "freezing: full lays out weights by itself; leave memory_format: blocked out"
    if execution == "eager" and params["dtype"] not in ("float32", "bfloat16", "int8"):
        yield f"freezing: full prepares weights in float32 or bfloat16; dtype is {params['dtype']}"
    if params["device"] != "cpu" or params["math"] == "vanilla":
        yield "freezing: full prepares weights for oneDNN, which needs device: cpu and math: vendor"
    if execution == "script" and params["dtype"] in ("bfloat16", "float16"):
        yield f"freezing: full under execution: script does not follow dtype: {params['dtype']}; use eager"


def _quickened(params: Params, here: Circumstances) -> Iterator[str]:
    """Layers on kernels of our own."""
    if params["execution"] != "quickened" or params["runtime"] != "torch":
        return
    traits = _traits(params, here)
    if traits.can_be_quickened is False:
        yield f"execution: quickened has no kernel for any layer of {params['workload']}"
    elif traits.takes_images and params["memory_format"] != "channels_last":
        yield "execution: quickened convolves images that lie otherwise; set memory_format: channels_last"
    if params["device"] != "cpu" or params["dtype"] != "float32":
        yield "execution: quickened computes float32 on the CPU"
    if params["math"] == "vanilla" or params["float32_precision"] != "default":
        yield "execution: quickened leaves the rest to oneDNN's float32; do not set math or float32_precision"
    if params["freezing"] != "none":
        yield f"freezing: {params['freezing']} brings kernels of its own; leave execution: eager"


def _malleable(params: Params, here: Circumstances) -> Iterator[str]:
    """Thread widths that change as a model runs."""
    if params["execution"] != "malleable" or params["runtime"] != "torch":
        return
    if params["device"] != "cpu":
        yield "execution: malleable changes the widths of CPU threads; device is cuda"
    if params["mode"] == "train" and params["processes"] > 1:
        yield "execution: malleable trains in one process; gradients of several are exchanged while it runs"
    if params["bind"] == "core":
        yield "execution: malleable pins its threads itself; leave bind: rank"
    if params["openmp"] == "libiomp5":
        yield "execution: malleable keeps teams of libgomp, which torch brings; openmp is libiomp5"


def _numbers(params: Params, here: Circumstances) -> Iterator[str]:
    """How float32 is computed, and what becomes of denormals."""
    precision, on_cuda = params["float32_precision"], params["device"] == "cuda"
    if params["runtime"] != "torch":
        return
    if params["denormals"] == "flush" and on_cuda:
        yield "denormals does not matter on device cuda; leave it default"
    if precision == "default":
        return
    if params["dtype"] != "float32":
        yield f"float32_precision: {precision} has no effect: dtype is {params['dtype']}"
    if on_cuda:
        if precision != "tf32":
            yield f"float32_precision: {precision} does not exist on device cuda; tf32 does"
        return
    if params["math"] == "vanilla":
        yield f"float32_precision: {precision} needs oneDNN, which math: vanilla switches off"
    known, needed = here.machine.instruction_sets, SHORT_PRODUCTS[precision]
    if known is not None and not known.intersection(needed):
        yield f"float32_precision: {precision} needs a CPU with {' or '.join(needed)}; this one has none"


def _huge_pages(params: Params, here: Circumstances) -> Iterator[str]:
    if params["huge_pages"] == "transparent" and here.machine.transparent_huge_pages == "never":
        yield "huge_pages: transparent is switched off in the kernel; `corewise doctor` says how to allow it"


_OF_TORCH = (
    *("memory_format", "execution", "freezing", "denormals", "openmp", "wait_policy"),
    *("data", "loader_workers", "pinned_memory"),
)
_LACKS: Mapping[str, tuple[str, ...]] = {  # what a runtime knows only the defaults of
    "numpy": ("device", "dtype", *_OF_TORCH, "float32_precision", "interop_threads"),
    "jax": (*_OF_TORCH, "interop_threads"),
    "tensorflow": _OF_TORCH,
}


def _lacking(params: Params, here: Circumstances) -> Iterator[str]:
    """What torch offers and another runtime does not."""
    runtime = params["runtime"]
    for name in _LACKS.get(runtime, ()):
        if name == "dtype" and is_kernel(here.workload):  # its arrays know more formats than numpy's models
            continue
        if params[name] != AXES[name].default and (name, params[name]) != ("dtype", "float64"):
            usual = AXES[name].default or "null"
            yield f"the {runtime} runtime has no {name}: {params[name]}; leave it {usual}"


def _xla(params: Params, here: Circumstances) -> Iterator[str]:
    """What JAX and TensorFlow make of numbers and threads."""
    runtime, device, precision = params["runtime"], params["device"], params["float32_precision"]
    if runtime not in ("jax", "tensorflow"):
        return
    if precision != "default":
        if params["dtype"] != "float32":
            yield f"float32_precision: {precision} has no effect: dtype is {params['dtype']}"
        elif (precision, device) != ("tf32", "cuda"):
            yield f"{runtime} has no float32_precision: {precision} on {device}; it has tf32 on cuda"
    if params["bind"] == "core" and params["threads"] > 1:
        yield (
            f"bind: core cannot hold: {runtime} keeps more threads than it computes with at a time, and any "
            "of them may be next; use bind: rank"
        )


def _libraries(params: Params, here: Circumstances) -> Iterator[str]:
    """Libraries to preload are installed."""
    for name in ("allocator", "openmp"):
        library = params[name]
        if library in ("default", "retain") or library in here.machine.libraries:
            continue
        hint = here.hints.get(library, "`corewise doctor` says how to install it")
        yield f"{name}: {library} is not installed here; {hint}"


def _loading(params: Params, here: Circumstances) -> Iterator[str]:
    if params["loader_workers"] and params["data"] == "synthetic":
        yield f"loader_workers: {params['loader_workers']} has nothing to load: data is synthetic"


def _size(params: Params, here: Circumstances) -> Iterator[str]:
    """The workload can be built with its arguments."""
    if here.workload is None or params["mode"] not in here.workload.modes:
        return
    args = workload_args(params)
    seen = f"{params['mode']} {sorted(args.items())}"
    if seen not in here.refusals:
        here.refusals[seen] = _refusal(here.workload, params["mode"], args)
    if here.refusals[seen]:
        yield here.refusals[seen]


def _refusal(workload: Workload, mode: str, args: Params) -> str:
    try:
        workload.work(mode, args)
    except ValueError as error:
        return str(error)
    return ""


RULES: tuple[Rule, ...] = (
    *(
        _offered,
        _kernel,
        _primitive,
        _room,
        _side_by_side,
        _images,
        _cores,
        _batch,
        _device,
        _int8,
        _gpu,
        _onednn,
        _freezing,
    ),
    *(_quickened, _malleable, _numbers, _huge_pages, _lacking, _xla, _libraries, _loading, _size),
)


def _traits(params: Params, here: Circumstances) -> Traits:
    """What the workload says of itself; nothing where its arguments are refused anyway."""
    args = workload_args(params)
    seen = repr(sorted(args.items()))
    if seen not in here.traits:
        try:
            here.traits[seen] = traits_of(here.workload, args)
        except ValueError:
            here.traits[seen] = Traits()
    return here.traits[seen]


def _many(count: int, noun: str) -> str:
    plural = noun + ("es" if noun.endswith("s") else "s")
    return f"{count} {noun if count == 1 else plural}"
