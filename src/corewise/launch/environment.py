"""Builds the environment variables of a trial's processes. Starts nothing."""

from collections.abc import Mapping
from pathlib import Path

from corewise.accelerate.malleable.idle_threads import build_thread_environment
from corewise.measured.instruction_sets import build_isa_variables
from corewise.measured.parameters import Allocator, Device, HugePages, MathKernels, OpenMP, TrialParameters, WaitPolicy

GIB = 1024**3

# Variables that a trial controls. Values inherited from the user would silently change the results.
CONTROLLED_PREFIXES = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "MALLOC_", "DNNL_", "ONEDNN_")
CONTROLLED_NAMES = (
    *("LD_PRELOAD", "TCMALLOC_RELEASE_RATE", "ATEN_CPU_CAPABILITY", "GLIBC_TUNABLES"),
    *("THP_MEM_ALLOC_ENABLE", "TORCHINDUCTOR_CPP_MARCH"),
)

# glibc up to 2.34 ignores mmap thresholds above 32 MiB, so mapping is switched off altogether.
RETAIN_VARIABLES = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(16 * GIB),
    "MALLOC_TOP_PAD_": str(64 * 1024**2),
}
# Binary logarithm of the cycles that an idle thread of OpenBLAS spins: its smallest and largest value.
OPENBLAS_SPIN = {WaitPolicy.PASSIVE: "4", WaitPolicy.ACTIVE: "30"}
PRELOADED_ALLOCATORS = ("tcmalloc", "jemalloc")
# torch requests huge pages for its tensors, the allocator for everything else (glibc 2.35 or newer).
TORCH_HUGE_PAGES = {"THP_MEM_ALLOC_ENABLE": "1"}
ALLOCATOR_HUGE_PAGES = {
    "default": {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"},
    "retain": {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"},
    "jemalloc": {"MALLOC_CONF": "thp:always"},
}


def build_trial_environment(
    params: TrialParameters, libraries: Mapping[str, Path], extra: Mapping[str, str]
) -> dict[str, str]:
    """Build the variables that a trial's processes get in addition to the inherited ones."""
    threads = str(params.threads)
    env = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), threads)
    env.update(_build_framework_variables(params))
    env.update(build_isa_variables(params.isa))
    if params.wait_policy != WaitPolicy.DEFAULT:
        env["OMP_WAIT_POLICY"] = params.wait_policy.value.upper()
        env["OPENBLAS_THREAD_TIMEOUT"] = OPENBLAS_SPIN[params.wait_policy]
    if params.allocator == Allocator.RETAIN:
        env.update(RETAIN_VARIABLES)
    if params.huge_pages == HugePages.TRANSPARENT:
        env.update(TORCH_HUGE_PAGES, **ALLOCATOR_HUGE_PAGES.get(params.allocator.value, {}))
    preload = [str(libraries[name]) for name in _list_preloaded(params)]
    if preload:
        env["LD_PRELOAD"] = ":".join(preload)
    if params.execution == "malleable":
        # Variables set above take precedence, such as another wait policy or allocator.
        env.update(build_thread_environment(env))
    env.update(extra)
    return env


def _build_framework_variables(params: TrialParameters) -> dict[str, str]:
    """Build the variables that JAX and TensorFlow read at import or first use, without the user's flags."""
    runtime, on_gpu = params.runtime, params.device == Device.CUDA
    if runtime == "jax":
        env = {
            # Without this variable, JAX starts one thread per CPU of the affinity mask.
            "PJRT_NPROC": str(params.threads),
            "JAX_PLATFORMS": "cuda,cpu" if on_gpu else "cpu",
            # This is JAX's default. Kernels that need float64 enable it themselves.
            "JAX_ENABLE_X64": "0",
            "XLA_FLAGS": "",
        }
        return {**env, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"} if on_gpu else env
    if runtime == "tensorflow":
        env = {
            "TF_NUM_INTRAOP_THREADS": str(params.threads),
            # 0 selects TensorFlow's default.
            "TF_NUM_INTEROP_THREADS": str(params.interop_threads or 0),
            "TF_ENABLE_ONEDNN_OPTS": "0" if params.math == MathKernels.VANILLA else "1",
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "TF_XLA_FLAGS": "",
            "XLA_FLAGS": "",
        }
        return {**env, "TF_FORCE_GPU_ALLOW_GROWTH": "true"} if on_gpu else env
    return {}


def strip_controlled_variables(outer: Mapping[str, str]) -> dict[str, str]:
    """Return the outer environment without the variables that a trial controls."""
    return {name: value for name, value in outer.items() if not is_controlled(name)}


def is_controlled(name: str) -> bool:
    """Return True when a trial controls this variable."""
    return name.startswith(CONTROLLED_PREFIXES) or name in CONTROLLED_NAMES


def _list_preloaded(params: TrialParameters) -> list[str]:
    """List the libraries to preload, by name."""
    names = []
    if params.allocator in PRELOADED_ALLOCATORS:
        names.append(params.allocator.value)
    if params.openmp == OpenMP.LIBIOMP5:
        names.append("libiomp5")
    return names
