"""The proof of a launch's pinning: where every thread of every rank was allowed to run, read while it ran."""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from corewise.launcher.descendants import descendants, read_parents
from corewise.machine.pinning import ThreadMask, format_cpu_list, read_thread_masks

FIRST_WAIT_S = 0.05
LONGEST_WAIT_S = 2.0
MAX_SHARE = 0.01  # of one CPU's time that looking may take once the ranks have settled
_LAST_CPU = 36  # field 39 of /proc/PID/task/TID/stat, counted from the state


@dataclass(frozen=True)
class RankProof:
    """What was seen of one rank; `rank` is None for processes that left their rank before we first looked."""

    rank: int | None
    cpus: tuple[int, ...]
    num_processes: int
    num_threads: int
    num_bound: int  # threads that may run on one CPU only
    ran_on: tuple[int, ...]
    outside: tuple[str, ...]  # sentences, one a thread


@dataclass(frozen=True)
class Proof:
    """What was seen of all ranks."""

    num_looks: int
    ranks: tuple[RankProof, ...]

    @property
    def holds(self) -> bool:
        return not self.unseen and not any(rank.outside for rank in self.ranks)

    @property
    def unseen(self) -> tuple[int, ...]:
        """Ranks that had ended before anyone looked."""
        return tuple(each.rank for each in self.ranks if each.rank is not None and not each.num_threads)

    def to_json(self) -> dict[str, Any]:
        """The proof as JSON values."""
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
        return {"holds": self.holds, "looks": self.num_looks, "ranks": ranks}


@dataclass
class _Seen:
    processes: set[int] = field(default_factory=set)
    threads: dict[int, ThreadMask] = field(default_factory=dict)  # the widest mask of each, or one outside
    ran_on: set[int] = field(default_factory=set)


class Verifier:
    """Looks at all threads of the ranks and of what they started, again and again."""

    def __init__(self, allowed: Sequence[Sequence[int]]) -> None:
        self._allowed = [frozenset(cpus) for cpus in allowed]
        self._anyones = frozenset().union(*self._allowed)
        self._seen: dict[int | None, _Seen] = {rank: _Seen() for rank in range(len(allowed))}
        self._owner: dict[int, int | None] = {}
        self._num_looks = 0
        self._wait_s = FIRST_WAIT_S

    def look(self, pids: Mapping[int, int]) -> float:
        """Seconds until the next look at the ranks, given as rank -> process."""
        began = time.perf_counter()
        for pid, rank in self._owners(pids).items():
            self._look_at(pid, rank)
        self._num_looks += 1
        wait_s, self._wait_s = self._wait_s, min(LONGEST_WAIT_S, 2 * self._wait_s)
        settled = wait_s == LONGEST_WAIT_S
        return max(wait_s, (time.perf_counter() - began) / MAX_SHARE if settled else 0.0)

    def proof(self) -> Proof:
        """What has been seen so far."""
        return Proof(self._num_looks, tuple(self._of_rank(rank) for rank in self._seen))

    def _owners(self, pids: Mapping[int, int]) -> dict[int, int | None]:
        """Every process below us with the rank it belongs to; an orphan belongs where it was last seen."""
        parents = read_parents()
        owners: dict[int, int | None] = {}
        for rank, pid in pids.items():
            owners.update(dict.fromkeys((pid, *descendants(pid, parents)), rank))
        sessions = {pid: rank for rank, pid in pids.items()}
        for pid in descendants(os.getpid(), parents):
            if pid not in owners:
                owners[pid] = self._owner.get(pid, _by_session(pid, sessions, len(self._allowed)))
        self._owner.update(owners)
        return owners

    def _look_at(self, pid: int, rank: int | None) -> None:
        seen = self._seen.setdefault(rank, _Seen())
        with suppress(OSError):  # ended meanwhile
            for tid, mask in read_thread_masks(pid).items():
                if self._says_more(mask, seen.threads.get(tid), rank):
                    seen.threads[tid] = mask
                last = _last_cpu(pid, tid)
                if last is not None:
                    seen.ran_on.add(last)
            seen.processes.add(pid)

    def _says_more(self, mask: ThreadMask, known: ThreadMask | None, rank: int | None) -> bool:
        """A thread seen outside stays so, whatever became of it."""
        if known is None or self._is_outside(known, rank):
            return known is None
        return self._is_outside(mask, rank) or len(mask.cpus) >= len(known.cpus)

    def _is_outside(self, mask: ThreadMask, rank: int | None) -> bool:
        return not self._cpus_of(rank).issuperset(mask.cpus)

    def _cpus_of(self, rank: int | None) -> frozenset[int]:
        return self._anyones if rank is None else self._allowed[rank]

    def _of_rank(self, rank: int | None) -> RankProof:
        seen, cpus = self._seen[rank], self._cpus_of(rank)
        outside = [
            f"thread {tid} ({mask.name}) may run on {format_cpu_list(mask.cpus)}"
            for tid, mask in sorted(seen.threads.items())
            if self._is_outside(mask, rank)
        ]
        return RankProof(
            rank=rank,
            cpus=tuple(sorted(cpus)),
            num_processes=len(seen.processes),
            num_threads=len(seen.threads),
            num_bound=sum(len(mask.cpus) == 1 for mask in seen.threads.values()),
            ran_on=tuple(sorted(seen.ran_on)),
            outside=tuple(outside),
        )


def proof_lines(proof: Proof) -> list[str]:
    """The proof as a table for people."""
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


def _by_session(pid: int, sessions: Mapping[int, int], num_ranks: int) -> int | None:
    if num_ranks == 1:
        return 0
    with suppress(OSError):
        return sessions.get(os.getsid(pid))
    return None


def _last_cpu(pid: int, tid: int) -> int | None:
    with suppress(OSError, IndexError, ValueError), open(f"/proc/{pid}/task/{tid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[_LAST_CPU])
    return None
