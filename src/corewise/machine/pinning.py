"""Puts a rank where its placement says, and reads back the proof.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import ctypes
import dataclasses
import errno
import os
import platform
import signal
from pathlib import Path
from typing import Iterable, Iterator, Mapping, Optional, Union

from corewise.spec.trial import RankPlacement

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_MAX_NODES = 1024  # the most a kernel can be built for
_WORD_BITS = 8 * ctypes.sizeof(ctypes.c_ulong)
_MODES = {"default": 0, "preferred": 1, "bind": 2, "interleave": 3, "local": 4}  # linux/mempolicy.h
_SYSCALLS = {
    "x86_64": {"set": 238, "get": 239},
    "aarch64": {"set": 237, "get": 236},
}  # Python has no call for these
_REFUSALS = {
    errno.ENOSYS: "this kernel was built without NUMA support",
    errno.EPERM: "the container's system-call filter forbids it (Docker: --cap-add SYS_NICE)",
    errno.EINVAL: "one of the nodes has no memory or lies outside the cpuset",
}

# Threads that serve and do not compute; they may use any CPU of the rank even under `bind: core`.
# All others are bound: OpenMP, OpenBLAS and MKL threads (they bear the process's name), frameworks' pools.
HELPER_PREFIXES = ("gloo", "pt_gloo", "pt_tcpstore", "pt_dist", "pt_data_pin", "jemalloc", "cuda", "tile_io")


@dataclasses.dataclass(frozen=True)
class ThreadMask:
    """Where a thread may run, and how much it has run."""

    name: str
    cpus: tuple[int, ...]
    cpu_s: float = 0.0


def apply(placement: RankPlacement) -> None:
    """Confine all threads of this process to the placement's CPUs and set its memory policy.

    Call before the framework's first operator: threads and memory policy are inherited by what comes after.
    """
    done: set[int] = set()
    while True:  # a thread may be born while we walk, with the old mask
        new = set(_thread_ids("self", "/proc")) - done
        if not new:
            break
        for tid in new:
            _set_affinity(tid, placement.cpus)
        done |= new
    left_out = set(placement.cpus) - os.sched_getaffinity(0)
    if left_out:  # the kernel drops CPUs outside the cpuset without a word
        raise OSError(errno.EINVAL, f"CPUs {format_cpu_list(left_out)} are not in this process's cpuset")
    set_memory_policy(placement)


def set_memory_policy(placement: RankPlacement) -> None:
    """Ask the kernel for the placement's memory policy."""
    _set_memory_policy(placement.memory_policy, placement.memory_nodes)


def bind_threads(cpus: Iterable[int]) -> None:
    """Give each compute thread of this process one CPU of its own, helpers all of them.

    For `bind: core`, once a warm-up step has started the threads; one born later inherits its creator's CPU.
    OMP_PROC_BIND will not do in a fork of a warm parent: libgomp takes its places from the parent's mask when
    it is loaded. The busiest threads get CPUs of their own, in order of birth, which is OpenMP's numbering;
    idle ones (another library's pool) share.
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
    """Thread number → name and allowed CPUs, for every thread of a process that lives while we look."""
    masks = {}
    for tid in _thread_ids(pid, proc):
        folder = Path(proc, str(pid), "task", str(tid))
        try:
            fields = dict(
                line.split(":", 1) for line in (folder / "status").read_text().splitlines() if ":" in line
            )
            cpu_s = _thread_cpu_s(folder)
        except (FileNotFoundError, ProcessLookupError):  # ended meanwhile
            continue
        cpus = tuple(_parse_cpu_list(fields["Cpus_allowed_list"]))
        masks[tid] = ThreadMask(fields["Name"].strip(), cpus, cpu_s)
    return masks


def violations(masks: Mapping[int, ThreadMask], cpus: Iterable[int], bind: str) -> list[str]:
    """Sentences naming the threads that break the binding; empty when all is well.

    bind none: nothing is asked. rank: every thread within the rank's CPUs. core: besides, exactly one CPU for
    every thread that may compute, that is all but the known helpers.
    """
    if bind == "none":
        return []
    allowed = set(cpus)
    found = []
    for tid, mask in sorted(masks.items()):
        if not allowed.issuperset(mask.cpus):
            problem = f"outside the rank's CPUs {format_cpu_list(allowed)}"
        elif bind == "core" and len(mask.cpus) != 1 and not is_helper(mask.name):
            problem = "though bind: core asks for exactly one CPU"
        else:
            continue
        found.append(f"thread {tid} ({mask.name}) may run on {format_cpu_list(mask.cpus)}, {problem}")
    return found


def is_helper(thread_name: str) -> bool:
    """Whether a thread of this name serves others and does not compute."""
    return thread_name.startswith(HELPER_PREFIXES)


def read_memory_policy() -> tuple[str, tuple[int, ...]]:
    """The calling thread's memory policy as the kernel has it, and its nodes."""
    mode = ctypes.c_int(-1)
    mask = _node_mask(())
    _memory_syscall("get", ctypes.byref(mode), mask, ctypes.c_ulong(_MAX_NODES + 1), None, ctypes.c_ulong(0))
    names = {number: name for name, number in _MODES.items()}
    nodes = tuple(n for n in range(_MAX_NODES) if mask[n // _WORD_BITS] >> n % _WORD_BITS & 1)
    return names.get(mode.value & 0xFF, f"mode {mode.value}"), nodes


def set_oom_first() -> bool:
    """Make this process the first to die when memory runs out; False when the kernel would not."""
    try:
        Path("/proc/self/oom_score_adj").write_text("1000")
    except OSError:
        return False
    return True


def die_with_parent(parent_pid: Optional[int] = None) -> None:
    """Have the kernel kill this process when the thread that forked it ends; at once if the parent has gone.

    A forked child passes its parent's number, so that a parent dead before this call is noticed too.
    """
    expected = os.getppid() if parent_pid is None else parent_pid
    _prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    if os.getppid() != expected:
        os.kill(os.getpid(), signal.SIGKILL)


def adopt_orphans() -> None:
    """Make every descendant whose parent dies a child of this process, daemons too."""
    _prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1))


def set_process_name(name: str) -> None:
    """Name the calling thread, and the threads it will start, as `ps` and `top` show them (15 bytes)."""
    _prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode("utf-8", "replace")[:15]))


def format_cpu_list(cpus: Iterable[int]) -> str:
    """CPU numbers as the kernel writes them: 0-3,8."""
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


def _thread_ids(pid: Union[int, str], proc: str) -> list[int]:
    return sorted(int(name) for name in os.listdir(Path(proc, str(pid), "task")))


def _thread_cpu_s(folder: Path) -> float:
    try:
        return int((folder / "schedstat").read_text().split()[0]) / 1e9
    except (FileNotFoundError, IndexError):  # a kernel without scheduler statistics: clock ticks
        after_name = (folder / "stat").read_text().rpartition(")")[2].split()
        return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


def _set_affinity(tid: int, cpus: Iterable[int]) -> None:
    wanted = set(cpus)
    try:
        os.sched_setaffinity(tid, wanted)
    except ProcessLookupError:
        return
    except OSError as problem:
        reason = (
            f"cannot run on CPUs {format_cpu_list(wanted)}: {problem.strerror}; are they online and allowed?"
        )
        raise OSError(problem.errno, reason) from None


def _set_memory_policy(policy: str, nodes: tuple[int, ...]) -> None:
    if policy == "default":  # leave what the user may have set by numactl
        return
    if policy == "local":  # not "bind", which kills a rank whose node is full while others have room
        _memory_syscall("set", ctypes.c_int(_MODES["local"]), None, ctypes.c_ulong(0))
        return
    if policy != "interleave":
        raise ValueError(f"unknown memory policy {policy!r}; known: default, local, interleave")
    if not nodes:
        raise ValueError("memory policy interleave needs at least one memory node")
    mask = _node_mask(nodes)
    _memory_syscall("set", ctypes.c_int(_MODES["interleave"]), mask, ctypes.c_ulong(_MAX_NODES + 1))


def _node_mask(nodes: Iterable[int]) -> ctypes.Array[ctypes.c_ulong]:
    words = (ctypes.c_ulong * (_MAX_NODES // _WORD_BITS))()
    for node in nodes:
        words[node // _WORD_BITS] |= 1 << node % _WORD_BITS
    return words


def _memory_syscall(which: str, *arguments: object) -> None:
    numbers = _SYSCALLS.get(platform.machine())
    if numbers is None:
        raise OSError(errno.ENOSYS, f"memory policies are not known for {platform.machine()} processors")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(ctypes.c_long(numbers[which]), *arguments) != 0:
        code = ctypes.get_errno()
        reason = _REFUSALS.get(code, os.strerror(code))
        raise OSError(code, f"cannot {which} the memory policy: {reason}")


def _prctl(option: int, argument: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    zero = ctypes.c_ulong(0)
    if libc.prctl(ctypes.c_int(option), argument, zero, zero, zero) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
