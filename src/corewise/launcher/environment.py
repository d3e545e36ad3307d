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
