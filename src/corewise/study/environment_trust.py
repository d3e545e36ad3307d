"""Decides which environment variables a study or a tuned file may set without the user's consent.

A variable can load code into every process, such as LD_PRELOAD or PYTHONPATH, and files come from others. Only
variables of the list below are taken from a file as they are. The user must agree to all others.
"""

from collections.abc import Mapping

from corewise.errors import UserError
from corewise.progress import LOADER_WORKERS

# Switches and numbers that change speed, precision or messages, by the library that reads them. Names are
# complete, because a prefix would let in variables that name a library, a program, a file or a folder, such as
# OMP_TOOL_LIBRARIES, MKL_VERBOSE_OUTPUT_FILE, XLA_FLAGS or TORCHINDUCTOR_CACHE_DIR.
PERFORMANCE_VARIABLES: Mapping[str, tuple[str, ...]] = {
    "OpenMP": (
        *("OMP_NUM_THREADS", "OMP_DYNAMIC", "OMP_SCHEDULE", "OMP_PROC_BIND", "OMP_PLACES", "OMP_STACKSIZE"),
        *("OMP_WAIT_POLICY", "OMP_MAX_ACTIVE_LEVELS", "OMP_NESTED", "OMP_THREAD_LIMIT", "OMP_CANCELLATION"),
        *("OMP_DISPLAY_ENV", "OMP_DISPLAY_AFFINITY", "OMP_MAX_TASK_PRIORITY"),
    ),
    "libgomp": ("GOMP_CPU_AFFINITY", "GOMP_STACKSIZE", "GOMP_SPINCOUNT"),
    "libiomp5": (
        *("KMP_AFFINITY", "KMP_BLOCKTIME", "KMP_HW_SUBSET", "KMP_LIBRARY", "KMP_SETTINGS", "KMP_STACKSIZE"),
        *("KMP_TPAUSE", "KMP_DETERMINISTIC_REDUCTION", "KMP_FORCE_REDUCTION", "KMP_DUPLICATE_LIB_OK"),
        *("KMP_INIT_AT_FORK", "KMP_USER_LEVEL_MWAIT", "KMP_WARNINGS"),
        *("KMP_FORKJOIN_BARRIER", "KMP_FORKJOIN_BARRIER_PATTERN", "KMP_PLAIN_BARRIER"),
        *("KMP_PLAIN_BARRIER_PATTERN", "KMP_REDUCTION_BARRIER", "KMP_REDUCTION_BARRIER_PATTERN"),
    ),
    "MKL": (
        *("MKL_NUM_THREADS", "MKL_DOMAIN_NUM_THREADS", "MKL_DYNAMIC", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS"),
        *("MKL_DEBUG_CPU_TYPE", "MKL_THREADING_LAYER", "MKL_INTERFACE_LAYER", "MKL_VERBOSE"),
        *("MKL_FAST_MEMORY_LIMIT", "MKL_DISABLE_FAST_MM", "MKL_SERVICE_FORCE_INTEL"),
    ),
    "OpenBLAS": (
        *("OPENBLAS_NUM_THREADS", "OPENBLAS_CORETYPE", "OPENBLAS_MAIN_FREE", "OPENBLAS_THREAD_TIMEOUT"),
        "OPENBLAS_VERBOSE",
    ),
    "oneDNN": tuple(
        f"{prefix}_{name}"
        for prefix in ("ONEDNN", "DNNL")
        for name in (
            *("MAX_CPU_ISA", "CPU_ISA_HINTS", "DEFAULT_FPMATH_MODE", "PRIMITIVE_CACHE_CAPACITY"),
            *("VERBOSE", "VERBOSE_TIMESTAMP"),
        )
    ),
    "allocators": (
        *("MALLOC_ARENA_MAX", "MALLOC_ARENA_TEST", "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_"),
        *("MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES"),
        *("TCMALLOC_RELEASE_RATE", "TCMALLOC_MAX_TOTAL_THREAD_CACHE_BYTES", "TCMALLOC_AGGRESSIVE_DECOMMIT"),
    ),
    "torch": (
        *("ATEN_CPU_CAPABILITY", "THP_MEM_ALLOC_ENABLE", "LRU_CACHE_CAPACITY", "TORCH_SHOW_CPP_STACKTRACES"),
        *("TORCH_WARM_POOL", "TORCH_MKLDNN_MATMUL_MIN_DIM", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"),
        *("TORCHINDUCTOR_COMPILE_THREADS", "TORCHINDUCTOR_CPP_WRAPPER", "TORCHINDUCTOR_FREEZING"),
        *("TORCHINDUCTOR_MAX_AUTOTUNE", "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM"),
        *("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING"),
    ),
    "JAX": (
        *("PJRT_NPROC", "JAX_PLATFORMS", "JAX_ENABLE_X64", "JAX_DEFAULT_MATMUL_PRECISION"),
        *("XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_ALLOCATOR"),
    ),
    "TensorFlow": (
        *("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "TF_ENABLE_ONEDNN_OPTS", "TF_CPP_MIN_LOG_LEVEL"),
        *("TF_FORCE_GPU_ALLOW_GROWTH", "TF_GPU_THREAD_MODE", "TF_GPU_THREAD_COUNT", "TF_DETERMINISTIC_OPS"),
    ),
    "CUDA": (
        *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING"),
        *("CUDA_DEVICE_MAX_CONNECTIONS", "CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE"),
    ),
    "Python": ("PYTHONUNBUFFERED", "PYTHONHASHSEED"),
    "Corewise": (LOADER_WORKERS, "COREWISE_NATIVE"),
}
_KNOWN_NAMES = frozenset(name for names in PERFORMANCE_VARIABLES.values() for name in names)


def select_untrusted(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that need the user's consent."""
    return {name: value for name, value in variables.items() if name not in _KNOWN_NAMES}


def require_trusted_environment(variables: Mapping[str, str], source: str, *, is_trusted: bool) -> None:
    """Raise UserError if variables of a file need the user's consent and it was not given.

    Args:
        variables: All variables that the file sets.
        source: The file, for the message.
        is_trusted: Whether the user passed `--trust-environment`.
    """
    untrusted = select_untrusted(variables)
    if untrusted and not is_trusted:
        raise UserError(describe_untrusted(untrusted, source))


def describe_untrusted(untrusted: Mapping[str, str], source: str) -> str:
    """Describe variables that need consent, and what to do."""
    return (
        f"{source}: its environment can load code or change more than speed:\n"
        f"{_format_variables(untrusted)}\n"
        "If you trust them, pass --trust-environment (in Python trust_environment=True); "
        "otherwise remove them from its `environment`."
    )


def describe_accepted(variables: Mapping[str, str], source: str) -> str:
    """Describe variables that are used with the user's consent; empty if none needs it."""
    untrusted = select_untrusted(variables)
    return f"{source} sets, as you allow:\n{_format_variables(untrusted)}" if untrusted else ""


def _format_variables(variables: Mapping[str, str]) -> str:
    """Format one indented line per variable; control characters are escaped."""
    return "\n".join(f"  {name}={value!r}" for name, value in variables.items())
