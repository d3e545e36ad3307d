"""Pin a rank to the CPUs and memory nodes of its placement, and read back the proof.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import ctypes
import dataclasses
import errno
import os
import platform
from pathlib import Path
from typing import Iterable, Iterator, Mapping, Union

from corewise.measured.trial import RankPlacement

# The largest number of NUMA nodes a Linux kernel can be built for.
_MAX_NODES = 1024
_WORD_BITS = 8 * ctypes.sizeof(ctypes.c_ulong)
# Policy numbers from linux/mempolicy.h.
_MODES = {"default": 0, "preferred": 1, "bind": 2, "interleave": 3, "local": 4}
# System call numbers of set_mempolicy and get_mempolicy, which Python does not wrap.
_SYSCALLS = {"x86_64": {"set": 238, "get": 239}, "aarch64": {"set": 237, "get": 236}}
_REFUSALS = {
    errno.ENOSYS: "this kernel was built without NUMA support",
    errno.EPERM: "the container's system-call filter forbids it (Docker: --cap-add SYS_NICE)",
    errno.EINVAL: "one of the nodes has no memory or lies outside the cpuset",
}

# Names of helper threads that do not compute. They may use any CPU of the rank even under `bind: core`.
# All others are bound: framework pools, and OpenMP, OpenBLAS and MKL threads (named like the process).
HELPER_PREFIXES = ("gloo", "pt_gloo", "pt_tcpstore", "pt_dist", "pt_data_pin", "jemalloc", "cuda", "cw_io")


@dataclasses.dataclass(frozen=True)
class ThreadMask:
    """The CPUs a thread may use, and the CPU time it has used."""

    name: str
    cpus: tuple[int, ...]
    cpu_s: float = 0.0


def apply_placement(placement: RankPlacement) -> None:
    """Confine all threads of this process to the CPUs of the placement and set its memory policy.

    Call this before the first operator of the framework: threads started later inherit mask and policy.
    """
    done: set[int] = set()
    # Repeat, because a thread may start with the old mask while we iterate.
    while True:
        new = set(_list_thread_ids("self", "/proc")) - done
        if not new:
            break
        for tid in new:
            _set_affinity(tid, placement.cpus)
        done |= new
    left_out = set(placement.cpus) - os.sched_getaffinity(0)
    # The kernel silently drops CPUs outside the cpuset.
    if left_out:
        raise OSError(errno.EINVAL, f"CPUs {format_cpu_list(left_out)} are not in this process's cpuset")
    set_memory_policy(placement)


def set_memory_policy(placement: RankPlacement) -> None:
    """Set the memory policy of the placement."""
    _set_memory_policy(placement.memory_policy, placement.memory_nodes)


def bind_threads(cpus: Iterable[int]) -> None:
    """Bind each compute thread of this process to one CPU; helper threads may use all of them.

    This implements `bind: core`. Call it after a warm-up step has started the threads; a thread started later
    inherits the CPU of its creator. OMP_PROC_BIND does not work in a fork of a warm parent, because libgomp
    takes its places from the mask of the parent when it is loaded. The busiest threads get a CPU each, in the
    order in which they were started, which is the numbering of OpenMP. Idle ones (of another library) share.
    """
    rank_cpus = tuple(cpus)
    masks = read_thread_masks()
    main = os.getpid()
    others = [tid for tid, mask in masks.items() if tid != main and not is_helper(mask.name)]
    by_use = sorted(others, key=lambda tid: -masks[tid].cpu_s)
    num_own = len(rank_cpus) - 1
    ordered = [main, *sorted(by_use[:num_own]), *by_use[num_own:]]
    for place, tid in enumerate(ordered):
        _set_affinity(tid, (rank_cpus[place % len(rank_cpus)],))
    for tid, mask in masks.items():
        if is_helper(mask.name):
            _set_affinity(tid, rank_cpus)


def read_thread_masks(pid: Union[int, str] = "self", proc: str = "/proc") -> dict[int, ThreadMask]:
    """Read name and allowed CPUs of every thread of a process, by thread id."""
    masks = {}
    for tid in _list_thread_ids(pid, proc):
        folder = Path(proc, str(pid), "task", str(tid))
        try:
            fields = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines() if ":" in line)
            cpu_s = _read_thread_cpu_s(folder)
        except (FileNotFoundError, ProcessLookupError):
            # The thread has ended in the meantime.
            continue
        cpus = tuple(_parse_cpu_list(fields["Cpus_allowed_list"]))
        masks[tid] = ThreadMask(fields["Name"].strip(), cpus, cpu_s)
    return masks


def find_violations(masks: Mapping[int, ThreadMask], cpus: Iterable[int], bind: str) -> list[str]:
    """Describe each thread that breaks the binding, in one sentence; empty if there is none.

    Binding "none" requires nothing. "rank" requires every thread to stay within the CPUs of the rank. "core"
    also requires exactly one CPU for every thread that computes, that is for all but the known helpers.
    """
    if bind == "none":
        return []
    allowed = set(cpus)
    violations = []
    for tid, mask in sorted(masks.items()):
        if not allowed.issuperset(mask.cpus):
            problem = f"outside the rank's CPUs {format_cpu_list(allowed)}"
        elif bind == "core" and len(mask.cpus) != 1 and not is_helper(mask.name):
            problem = "though bind: core asks for exactly one CPU"
        else:
            continue
        violations.append(f"thread {tid} ({mask.name}) may run on {format_cpu_list(mask.cpus)}, {problem}")
    return violations


def is_helper(thread_name: str) -> bool:
    """Return whether a thread of this name is a helper that does not compute."""
    return thread_name.startswith(HELPER_PREFIXES)


def read_memory_policy() -> tuple[str, tuple[int, ...]]:
    """Read the memory policy of the calling thread and its nodes from the kernel."""
    mode = ctypes.c_int(-1)
    mask = _build_node_mask(())
    _call_memory_policy("get", ctypes.byref(mode), mask, ctypes.c_ulong(_MAX_NODES + 1), None, ctypes.c_ulong(0))
    names = {number: name for name, number in _MODES.items()}
    nodes = tuple(n for n in range(_MAX_NODES) if mask[n // _WORD_BITS] >> n % _WORD_BITS & 1)
    return names.get(mode.value & 0xFF, f"mode {mode.value}"), nodes


def format_cpu_list(cpus: Iterable[int]) -> str:
    """Format CPU numbers as the kernel does: 0-3,8."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs) or "none"


def _parse_cpu_list(text: str) -> Iterator[int]:
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            yield from range(int(first), int(last or first) + 1)


def _list_thread_ids(pid: Union[int, str], proc: str) -> list[int]:
    return sorted(int(name) for name in os.listdir(Path(proc, str(pid), "task")))


def _read_thread_cpu_s(folder: Path) -> float:
    try:
        return int((folder / "schedstat").read_text().split()[0]) / 1e9
    except (FileNotFoundError, IndexError):
        # This kernel has no scheduler statistics, so count clock ticks.
        after_name = (folder / "stat").read_text().rpartition(")")[2].split()
        return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


def _set_affinity(tid: int, cpus: Iterable[int]) -> None:
    allowed = set(cpus)
    try:
        os.sched_setaffinity(tid, allowed)
    except ProcessLookupError:
        return
    except OSError as problem:
        reason = f"cannot run on CPUs {format_cpu_list(allowed)}: {problem.strerror}; are they online and allowed?"
        raise OSError(problem.errno, reason) from None


def _set_memory_policy(policy: str, nodes: tuple[int, ...]) -> None:
    # The default keeps a policy that the user may have set with numactl.
    if policy == "default":
        return
    # MPOL_BIND would kill a rank whose node is full while others have memory left.
    if policy == "local":
        _call_memory_policy("set", ctypes.c_int(_MODES["local"]), None, ctypes.c_ulong(0))
        return
    if policy != "interleave":
        raise ValueError(f"unknown memory policy {policy!r}; known: default, local, interleave")
    if not nodes:
        raise ValueError("memory policy interleave needs at least one memory node")
    mask = _build_node_mask(nodes)
    _call_memory_policy("set", ctypes.c_int(_MODES["interleave"]), mask, ctypes.c_ulong(_MAX_NODES + 1))


def _build_node_mask(nodes: Iterable[int]) -> ctypes.Array[ctypes.c_ulong]:
    mask = (ctypes.c_ulong * (_MAX_NODES // _WORD_BITS))()
    for node in nodes:
        mask[node // _WORD_BITS] |= 1 << node % _WORD_BITS
    return mask


def _call_memory_policy(action: str, *arguments: object) -> None:
    numbers = _SYSCALLS.get(platform.machine())
    if numbers is None:
        raise OSError(errno.ENOSYS, f"memory policies are not supported on {platform.machine()} processors")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(ctypes.c_long(numbers[action]), *arguments) != 0:
        code = ctypes.get_errno()
        reason = _REFUSALS.get(code, os.strerror(code))
        raise OSError(code, f"cannot {action} the memory policy: {reason}")
