from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from corewise.measured.parameters import TrialParameters
from corewise.measured.workloads.base import Work, Workload
from corewise.measured.workloads.registry import find_workload
from corewise.study.axes import AXES
from corewise.study.planning.feasibility import FeasibilityContext, MachineView, explain_infeasibility
from corewise.study.syntax.expressions import Expression

MACHINE = MachineView(
    num_cores=4,
    num_cpus=8,
    num_numa_nodes=2,
    num_sockets=1,
    has_cuda=True,
    num_gpus=1,
    libraries=frozenset({"libgomp", "jemalloc"}),
    memory_bytes=1 << 34,
)


@dataclass(frozen=True)
class SampleWorkload(Workload):
    name: str = "toy"
    summary: str = "a made-up workload"
    modes: tuple[str, ...] = ("train", "infer")
    runtimes: tuple[str, ...] = ("torch", "numpy")
    concurrent: bool = False

    @property
    def parameters(self) -> Mapping[str, Any]:
        return {"size": 8}

    def count_work(self, mode: str, args: Mapping[str, Any], dtype: str | None = None) -> Work:
        if args.get("size", 8) < 4:
            raise ValueError(f"toy: size {args['size']} is too small")
        return Work(1.0, 1.0, 1)


TOY = SampleWorkload()


def build_params(**changes: Any) -> dict[str, Any]:
    defaults = {name: 1 if isinstance(axis.default, Expression) else axis.default for name, axis in AXES.items()}
    return {"workload": "toy", "mode": "infer", "runtime": "torch", **defaults, "args.size": 8, **changes}


def explain(workload: SampleWorkload | None = TOY, machine: MachineView = MACHINE, **changes: Any) -> tuple[str, ...]:
    hints = {"tcmalloc": "apt install libtcmalloc-minimal4"}
    return explain_infeasibility(
        TrialParameters.from_mapping(build_params(**changes)), FeasibilityContext(machine, workload, hints)
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"threads": 5}, "1 process × 5 threads need 5 cores; the allocation has 4; use fewer, or set oversubscribe"),
        ({"processes": 3, "threads": 2}, "3 processes × 2 threads need 6 cores; the allocation has 4"),
        ({"threads": 4, "reserved_cores": 1}, "need 4 cores; the allocation has 3 (1 reserved)"),
        ({"threads": 7, "smt": True, "reserved_cores": 1}, "need 7 CPUs; the allocation has 6 (1 reserved)"),
        ({"reserved_cores": 4}, "reserved_cores 4 leaves none of the allocation's 4 cores"),
        ({"interop_threads": 2}, "interop_threads has no effect: nothing in toy runs concurrently"),
        (
            {"batch_scope": "global", "batch": 16, "processes": 3},
            "a global batch of 16 is not a multiple of 3 processes",
        ),
        ({"memory_format": "blocked", "mode": "train"}, "memory_format: blocked is for inference only"),
        ({"memory_format": "blocked", "math": "vanilla"}, "memory_format: blocked needs oneDNN"),
        ({"memory_format": "blocked", "device": "cuda"}, "blocked needs oneDNN, which torch on cuda does not use"),
        ({"dtype": "float16"}, "float16 is not supported on device: cpu"),
        ({"allocator": "tcmalloc"}, "allocator: tcmalloc is not installed; apt install libtcmalloc-minimal4"),
        ({"openmp": "libiomp5"}, "openmp: libiomp5 is not installed; `corewise doctor` shows how"),
        ({"math": "vanilla", "device": "cuda"}, "math: vanilla disables oneDNN, which torch on cuda does not use"),
        ({"math": "vanilla", "runtime": "numpy"}, "math: vanilla disables oneDNN, which numpy on cpu does not use"),
        ({"openmp": "libgomp", "device": "cuda"}, "openmp has no effect on device: cuda"),
        ({"wait_policy": "active", "device": "cuda"}, "wait_policy has no effect on device: cuda"),
        ({"execution": "compile", "runtime": "numpy"}, "the numpy runtime has no execution: compile; leave it eager"),
        ({"dtype": "bfloat16", "runtime": "numpy"}, "the numpy runtime has no dtype: bfloat16; leave it float32"),
        ({"device": "cuda", "runtime": "numpy"}, "the numpy runtime has no device: cuda"),
        ({"loader_workers": 2}, "loader_workers: 2 has nothing to load: data is synthetic"),
        ({"device": "cuda", "processes": 2}, "2 processes need a GPU each; this machine has 1"),
        ({"args.size": 2}, "toy: size 2 is too small"),
        ({"freezing": "fold", "mode": "train"}, "freezing: fold is for inference only"),
        (
            {"freezing": "full", "memory_format": "blocked"},
            "freezing: full chooses the layout of weights; do not set memory_format: blocked",
        ),
        (
            {"freezing": "full", "dtype": "float64"},
            "freezing: full prepares weights in float32 or bfloat16; dtype is float64",
        ),
        (
            {"execution": "fast-kernels", "memory_format": "channels_last", "dtype": "bfloat16"},
            "execution: fast-kernels supports float32 on the CPU only",
        ),
        (
            {"execution": "fast-kernels", "memory_format": "channels_last", "math": "vanilla"},
            "execution: fast-kernels uses oneDNN's float32 for all other layers",
        ),
        (
            {"execution": "fast-kernels", "memory_format": "channels_last", "freezing": "fold"},
            "freezing: fold uses other kernels; leave execution: eager",
        ),
        ({"execution": "malleable", "device": "cuda"}, "malleable changes the number of CPU threads"),
        (
            {"execution": "malleable", "runtime": "numpy"},
            "the numpy runtime has no execution: malleable; leave it eager",
        ),
        ({"freezing": "full", "execution": "compile", "math": "vanilla"}, "needs device: cpu and math: vendor"),
        (
            {"freezing": "full", "execution": "script", "dtype": "bfloat16"},
            "freezing: full under execution: script does not support dtype: bfloat16; use eager",
        ),
        ({"freezing": "fold", "runtime": "numpy"}, "the numpy runtime has no freezing: fold; leave it none"),
        ({"float32_precision": "bf16", "dtype": "float64"}, "has no effect: dtype is float64"),
        ({"float32_precision": "bf16", "math": "vanilla"}, "needs oneDNN, which math: vanilla disables"),
        ({"float32_precision": "bf16", "device": "cuda"}, "bf16 does not exist on device: cuda; use tf32"),
        ({"denormals": "flush", "device": "cuda"}, "denormals has no effect on device: cuda"),
        ({"denormals": "flush", "runtime": "numpy"}, "the numpy runtime has no denormals: flush"),
    ],
)
def test_a_point_that_cannot_be_measured_has_its_reason(changes: dict[str, Any], reason: str) -> None:
    (result,) = explain(**changes)
    assert reason in result


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"threads": 4},
        {"threads": 8, "smt": True},
        {"threads": 64, "oversubscribe": True},
        {"batch_scope": "global", "batch": 15, "processes": 3},
        {"memory_format": "blocked"},
        {"dtype": "float16", "device": "cuda"},
        {"allocator": "jemalloc", "openmp": "libgomp"},
        {"allocator": "retain", "wait_policy": "passive", "math": "vanilla"},
        {"loader_workers": 2, "data": "/images"},
        {"runtime": "numpy"},
        {"runtime": "numpy", "huge_pages": "transparent"},
        {"runtime": "numpy", "wait_policy": "passive"},
        {"freezing": "fold", "memory_format": "channels_last"},
        {"execution": "fast-kernels", "memory_format": "channels_last", "mode": "train"},
        {"freezing": "full", "execution": "compile", "dtype": "bfloat16"},
        {"float32_precision": "bf16", "denormals": "flush", "huge_pages": "transparent"},
        {"float32_precision": "tf32", "device": "cuda"},
    ],
)
def test_a_point_that_can_be_measured_has_no_reason_against_it(changes: dict[str, Any]) -> None:
    assert explain(**changes) == ()


@pytest.mark.parametrize(
    ("workload", "memory_format", "reason"),
    [
        ("resnet18", "contiguous", "fast-kernels needs images in channels_last; set memory_format: channels_last"),
        ("resnet18", "channels_last", None),
        ("resnext50_32x4d", "channels_last", "fast-kernels has no kernel for any layer of resnext50_32x4d"),
        ("transformer", "contiguous", "fast-kernels has no kernel for any layer of transformer"),
        ("lstm_ensemble", "contiguous", None),
    ],
)
def test_own_kernels_are_for_some_models(workload: str, memory_format: str, reason: str | None) -> None:
    point = {**build_params(workload=workload, execution="fast-kernels", memory_format=memory_format, mode="train")}
    del point["args.size"]
    result = explain_infeasibility(
        TrialParameters.from_mapping(point), FeasibilityContext(MACHINE, find_workload(workload), {})
    )
    assert result == (() if reason is None else (f"execution: {reason}",))


def test_modes_and_runtimes_are_those_the_workload_offers() -> None:
    only = SampleWorkload(modes=("infer",), runtimes=("torch",))
    assert explain(only, mode="train") == ("toy has no mode train; it has infer",)
    assert explain(only, runtime="numpy") == ("toy has no runtime numpy; it has torch",)


def test_interop_threads_stay_where_something_is_concurrent() -> None:
    assert explain(SampleWorkload(concurrent=True), interop_threads=2) == ()


ENSEMBLE, RESNET = find_workload("lstm_ensemble"), find_workload("resnet18")


@pytest.mark.parametrize(
    ("workload", "changes", "reason"),
    [
        (ENSEMBLE, {"memory_format": "channels_last"}, "channels_last is for images; toy takes none"),
        (ENSEMBLE, {"data": "/images"}, "data: /images is for images; toy takes none"),
        (ENSEMBLE, {"freezing": "fold"}, "fold has nothing to fold: toy has no batch normalisation"),
        (ENSEMBLE, {"interop_threads": 1}, "interop_threads needs execution: script"),
        (
            ENSEMBLE,
            {"interop_threads": 4, "threads": 2, "execution": "script"},
            "interop_threads 4 share 2 threads; use fewer, or set oversubscribe: true",
        ),
        (RESNET, {"interop_threads": 2}, "nothing in resnet18 runs concurrently"),
        (
            ENSEMBLE,
            {"execution": "malleable", "mode": "train", "processes": 2, "threads": 1},
            "execution: malleable trains in one process",
        ),
        (ENSEMBLE, {"execution": "malleable", "bind": "core"}, "malleable pins its own threads"),
        (ENSEMBLE, {"execution": "malleable", "interop_threads": 1}, "interop_threads needs execution: script"),
        (RESNET, {"execution": "malleable", "freezing": "full"}, "full needs execution: eager, compile or script"),
    ],
)
def test_traits_of_a_workload_rule_points_out(workload: Workload, changes: dict[str, Any], reason: str) -> None:
    given = {name: value for name, value in build_params(**changes).items() if not name.startswith("args.")}
    (result,) = explain_infeasibility(TrialParameters.from_mapping(given), FeasibilityContext(MACHINE, workload))
    assert reason in result


@pytest.mark.parametrize(
    ("workload", "changes"),
    [
        (ENSEMBLE, {"interop_threads": 4, "threads": 4, "execution": "script"}),
        (ENSEMBLE, {"interop_threads": 4, "execution": "script", "oversubscribe": True}),
        (RESNET, {"freezing": "fold", "memory_format": "blocked"}),
        (RESNET, {"freezing": "fold", "execution": "malleable"}),
        (ENSEMBLE, {"execution": "malleable", "processes": 2, "threads": 1}),
    ],
)
def test_traits_of_a_workload_allow_points(workload: Workload, changes: dict[str, Any]) -> None:
    given = {name: value for name, value in build_params(**changes).items() if not name.startswith("args.")}
    assert explain_infeasibility(TrialParameters.from_mapping(given), FeasibilityContext(MACHINE, workload)) == ()


@pytest.mark.parametrize(
    ("instruction_sets", "precision", "exists"),
    [
        (None, "bf16", True),
        ({"avx512f", "avx512_bf16"}, "bf16", False),
        ({"amx_bf16"}, "bf16", True),
        ({"svebf16"}, "bf16", True),
        ({"amx_bf16"}, "tf32", False),
        ({"amx_fp16"}, "tf32", True),
    ],
)
def test_short_products_need_a_cpu_that_has_them(
    instruction_sets: set[str] | None, precision: str, exists: bool
) -> None:
    sets = None if instruction_sets is None else frozenset(instruction_sets)
    result = explain(machine=replace(MACHINE, instruction_sets=sets), float32_precision=precision)
    assert (result == ()) is exists
    assert exists or f"float32_precision: {precision} needs a CPU with" in result[0]


@pytest.mark.parametrize(("setting", "exists"), [("never", False), ("madvise", True), ("always", True), ("", True)])
def test_huge_pages_need_a_kernel_that_gives_them(setting: str, exists: bool) -> None:
    result = explain(machine=replace(MACHINE, transparent_huge_pages=setting), huge_pages="transparent")
    assert (result == ()) is exists
    assert exists or "disabled in the kernel" in result[0]


def test_nothing_is_ruled_out_for_a_custom_workload() -> None:
    assert explain(None, mode="train", interop_threads=2) == ()


def test_a_missing_gpu_is_reported_and_an_unknown_one_is_not() -> None:
    assert explain(machine=replace(MACHINE, has_cuda=False), device="cuda") == (
        "this machine has no CUDA device; use device: cpu",
    )
    assert explain(machine=replace(MACHINE, has_cuda=None, num_gpus=None), device="cuda", processes=2) == ()


def test_all_reasons_are_reported() -> None:
    assert len(explain(threads=5, dtype="float16", loader_workers=1)) == 3


@pytest.mark.parametrize(
    ("name", "argument", "limit"),
    [
        ("matmul", "size", 5_120_000),
        ("resnet50", "image_size", 2_240_000),
        ("transformer", "layers", 60_000),
        ("two_tower", "layers", 30_000),
        ("lstm_ensemble", "members", 40_000),
        ("mixture_of_experts", "experts", 80_000),
        ("cg", "size", 10**15),
    ],
)
@pytest.mark.parametrize("value", [2**61 - 1, 10**200, 1e300])
def test_an_argument_beyond_any_machine_is_refused_before_it_is_computed_with(
    name: str, argument: str, limit: int, value: float
) -> None:
    changes = {"workload": name, "runtime": "torch", f"args.{argument}": value}
    params = {key: each for key, each in build_params(**changes).items() if key != "args.size" or argument == "size"}
    context = FeasibilityContext(MACHINE, find_workload(name))
    reasons = explain_infeasibility(TrialParameters.from_mapping(params), context)
    assert reasons == (f"args.{argument} must be at most {limit:,} in {name}",)


def test_a_users_own_workload_takes_arguments_of_any_size() -> None:
    assert explain(None, **{"args.size": 10**200}) == ()
