"""The environment of a trial's processes, as a value."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from corewise.dataflow.spinning import wanted_environment

GIB = 1024**3

# What a trial sets itself; the user's own values would change the numbers unseen.
CONTROLLED_PREFIXES = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "MALLOC_", "DNNL_", "ONEDNN_")
CONTROLLED_NAMES = (
    *("LD_PRELOAD", "TCMALLOC_RELEASE_RATE", "ATEN_CPU_CAPABILITY", "GLIBC_TUNABLES"),
    "THP_MEM_ALLOC_ENABLE",
)

# glibc up to 2.34 ignores mmap thresholds above 32 MiB, so mapping is switched off altogether.
RETAIN = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(16 * GIB),
    "MALLOC_TOP_PAD_": str(64 * 1024**2),
}
PRELOADED_ALLOCATORS = ("tcmalloc", "jemalloc")
# Who asks the kernel for huge pages: torch for its tensors, the allocator for the rest (glibc from 2.35).
TORCH_HUGE_PAGES = {"THP_MEM_ALLOC_ENABLE": "1"}
ALLOCATOR_HUGE_PAGES = {
    "default": {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"},
    "retain": {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"},
    "jemalloc": {"MALLOC_CONF": "thp:always"},
}


def trial_environment(
    params: Mapping[str, Any], libraries: Mapping[str, Path], extra: Mapping[str, str]
) -> dict[str, str]:
    """The variables a trial's processes start with, beyond what they inherit."""
    threads = str(params["threads"])
    env = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), threads)
    env.update(_framework_variables(params))
    if params["wait_policy"] != "default":
        env["OMP_WAIT_POLICY"] = str(params["wait_policy"]).upper()
    if params["allocator"] == "retain":
        env.update(RETAIN)
    if params.get("huge_pages", "default") == "transparent":
        env.update(TORCH_HUGE_PAGES, **ALLOCATOR_HUGE_PAGES.get(str(params["allocator"]), {}))
    preload = [str(libraries[name]) for name in _preloaded(params)]
    if preload:
        env["LD_PRELOAD"] = ":".join(preload)
    if params.get("execution") == "malleable":  # what is set already wins: another wait policy or allocator
        env.update(wanted_environment(env))
    env.update(extra)
    return env


def _framework_variables(params: Mapping[str, Any]) -> dict[str, str]:
    """What JAX and TensorFlow read when they are loaded or first used; the user's own flags are left out."""
    runtime, on_gpu = params.get("runtime"), params.get("device") == "cuda"
    if runtime == "jax":
        env = {
            "PJRT_NPROC": str(params["threads"]),  # else a thread for each CPU of the mask
            "JAX_PLATFORMS": "cuda,cpu" if on_gpu else "cpu",
            "JAX_ENABLE_X64": "0",  # as JAX comes; kernels switch it on
            "XLA_FLAGS": "",
        }
        return {**env, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"} if on_gpu else env
    if runtime == "tensorflow":
        env = {
            "TF_NUM_INTRAOP_THREADS": str(params["threads"]),
            "TF_NUM_INTEROP_THREADS": str(params.get("interop_threads") or 0),  # 0: as it comes
            "TF_ENABLE_ONEDNN_OPTS": "0" if params.get("math") == "vanilla" else "1",
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "TF_XLA_FLAGS": "",
            "XLA_FLAGS": "",
        }
        return {**env, "TF_FORCE_GPU_ALLOW_GROWTH": "true"} if on_gpu else env
    return {}


def inherited_environment(outer: Mapping[str, str]) -> dict[str, str]:
    """The outer environment without what a trial controls itself."""
    return {name: value for name, value in outer.items() if not is_controlled(name)}


def is_controlled(name: str) -> bool:
    """True when a trial decides this variable."""
    return name.startswith(CONTROLLED_PREFIXES) or name in CONTROLLED_NAMES


def _preloaded(params: Mapping[str, Any]) -> list[str]:
    names = []
    if params["allocator"] in PRELOADED_ALLOCATORS:
        names.append(str(params["allocator"]))
    if params["openmp"] == "libiomp5":
        names.append("libiomp5")
    return names
