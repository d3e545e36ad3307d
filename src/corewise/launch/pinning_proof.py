"""Verifies the pinning of a launch: reads where each thread of each rank may run, while it runs."""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from corewise.measured.pinning import ThreadMask, format_cpu_list, read_thread_masks
from corewise.measured.worker.descendants import find_descendants, read_parents

FIRST_WAIT_S = 0.05
LONGEST_WAIT_S = 2.0
# Once the interval has reached its maximum, observing takes at most this fraction of one CPU's time.
MAX_SHARE = 0.01
# The index of field 39 of /proc/PID/task/TID/stat, counted from the state field.
_LAST_CPU_FIELD = 36


@dataclass(frozen=True)
class RankPinning:
    """What was observed of one rank.

    Attributes:
        rank: None for processes that left their rank before the first observation.
        num_bound: The number of threads that may run on one CPU only.
        outside: One sentence per thread that may run outside the rank's CPUs.
    """

    rank: int | None
    cpus: tuple[int, ...]
    num_processes: int
    num_threads: int
    num_bound: int
    ran_on: tuple[int, ...]
    outside: tuple[str, ...]


@dataclass(frozen=True)
class PinningProof:
    """What was observed of all ranks."""

    num_observations: int
    ranks: tuple[RankPinning, ...]

    @property
    def holds(self) -> bool:
        return not self.unobserved and not any(rank.outside for rank in self.ranks)

    @property
    def unobserved(self) -> tuple[int, ...]:
        """Ranks that ended before the first observation."""
        return tuple(each.rank for each in self.ranks if each.rank is not None and not each.num_threads)

    def to_json(self) -> dict[str, Any]:
        """Convert the proof to JSON values."""
        ranks = [
            {
                "rank": each.rank,
                "cpus": list(each.cpus),
                "processes": each.num_processes,
                "threads": each.num_threads,
                "threads_on_one_cpu": each.num_bound,
                "ran_on": list(each.ran_on),
                "outside": list(each.outside),
            }
            for each in self.ranks
        ]
        return {"holds": self.holds, "looks": self.num_observations, "ranks": ranks}


@dataclass
class _RankObservation:
    processes: set[int] = field(default_factory=set)
    # The widest mask of each thread, or the first one outside the allowed CPUs.
    threads: dict[int, ThreadMask] = field(default_factory=dict)
    ran_on: set[int] = field(default_factory=set)


class PinningVerifier:
    """Observes, repeatedly, all threads of the ranks and of the processes that they started."""

    def __init__(self, allowed: Sequence[Sequence[int]], first_rank: int = 0) -> None:
        # Ranks are counted from 0 here; the proof names them by their global rank.
        self._first_rank = first_rank
        self._allowed = [frozenset(cpus) for cpus in allowed]
        self._all_allowed = frozenset().union(*self._allowed)
        self._seen: dict[int | None, _RankObservation] = {rank: _RankObservation() for rank in range(len(allowed))}
        self._owner: dict[int, int | None] = {}
        self._num_observations = 0
        self._wait_s = FIRST_WAIT_S

    def observe_ranks(self, pids: Mapping[int, int]) -> float:
        """Observe the ranks (rank -> process) and return the seconds until the next observation."""
        began = time.perf_counter()
        for pid, rank in self._assign_owners(pids).items():
            self._observe_process(pid, rank)
        self._num_observations += 1
        wait_s, self._wait_s = self._wait_s, min(LONGEST_WAIT_S, 2 * self._wait_s)
        is_settled = wait_s == LONGEST_WAIT_S
        return max(wait_s, (time.perf_counter() - began) / MAX_SHARE if is_settled else 0.0)

    def build_proof(self) -> PinningProof:
        """Return what was observed so far."""
        return PinningProof(self._num_observations, tuple(self._build_rank_proof(rank) for rank in self._seen))

    def _assign_owners(self, pids: Mapping[int, int]) -> dict[int, int | None]:
        """Map each process below us to its rank; an orphan stays with the rank it last belonged to."""
        parents = read_parents()
        owners: dict[int, int | None] = {}
        for rank, pid in pids.items():
            owners.update(dict.fromkeys((pid, *find_descendants(pid, parents)), rank))
        sessions = {pid: rank for rank, pid in pids.items()}
        for pid in find_descendants(os.getpid(), parents):
            if pid not in owners:
                owners[pid] = self._owner.get(pid, _find_rank_by_session(pid, sessions, len(self._allowed)))
        self._owner.update(owners)
        return owners

    def _observe_process(self, pid: int, rank: int | None) -> None:
        seen = self._seen.setdefault(rank, _RankObservation())
        # The process may have ended in the meantime.
        with suppress(OSError):
            for tid, mask in read_thread_masks(pid).items():
                if self._should_replace(mask, seen.threads.get(tid), rank):
                    seen.threads[tid] = mask
                last = _read_last_cpu(pid, tid)
                if last is not None:
                    seen.ran_on.add(last)
            seen.processes.add(pid)

    def _should_replace(self, mask: ThreadMask, known: ThreadMask | None, rank: int | None) -> bool:
        """Return True when the mask replaces the known one; a mask outside the allowed CPUs is final."""
        if known is None or self._is_outside(known, rank):
            return known is None
        return self._is_outside(mask, rank) or len(mask.cpus) >= len(known.cpus)

    def _is_outside(self, mask: ThreadMask, rank: int | None) -> bool:
        return not self._get_allowed_cpus(rank).issuperset(mask.cpus)

    def _get_allowed_cpus(self, rank: int | None) -> frozenset[int]:
        return self._all_allowed if rank is None else self._allowed[rank]

    def _build_rank_proof(self, rank: int | None) -> RankPinning:
        seen, cpus = self._seen[rank], self._get_allowed_cpus(rank)
        outside = [
            f"thread {tid} ({mask.name}) may run on {format_cpu_list(mask.cpus)}"
            for tid, mask in sorted(seen.threads.items())
            if self._is_outside(mask, rank)
        ]
        return RankPinning(
            rank=None if rank is None else self._first_rank + rank,
            cpus=tuple(sorted(cpus)),
            num_processes=len(seen.processes),
            num_threads=len(seen.threads),
            num_bound=sum(len(mask.cpus) == 1 for mask in seen.threads.values()),
            ran_on=tuple(sorted(seen.ran_on)),
            outside=tuple(outside),
        )


def format_proof(proof: PinningProof) -> list[str]:
    """Format the proof as a table."""
    header = ("rank", "CPUs", "ran on", "processes", "threads", "outside")
    rows = [
        (
            "left" if each.rank is None else str(each.rank),
            format_cpu_list(each.cpus),
            format_cpu_list(each.ran_on),
            str(each.num_processes),
            str(each.num_threads),
            f"{len(each.outside)}" if each.outside else "none",
        )
        for each in proof.ranks
    ]
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (header, *rows)
    ]
    for each in proof.ranks:
        name = "left behind" if each.rank is None else f"rank {each.rank}"
        lines += [f"{name}: {sentence}, outside {format_cpu_list(each.cpus)}" for sentence in each.outside]
    return lines


def _find_rank_by_session(pid: int, sessions: Mapping[int, int], num_ranks: int) -> int | None:
    if num_ranks == 1:
        return 0
    with suppress(OSError):
        return sessions.get(os.getsid(pid))
    return None


def _read_last_cpu(pid: int, tid: int) -> int | None:
    with suppress(OSError, IndexError, ValueError), open(f"/proc/{pid}/task/{tid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[_LAST_CPU_FIELD])
    return None
