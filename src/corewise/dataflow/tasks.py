"""Calls merged into tasks: none smaller than its overhead, while branches and changes of width remain.

Measured side: standard library only, Python 3.9. Pure.
"""

from __future__ import annotations

import heapq
from typing import Callable, Dict, FrozenSet, List, Mapping, Optional, Sequence, Set, Tuple

from corewise.dataflow.program import Program
from corewise.dataflow.schedule import Task

CallCosts = Sequence[Mapping[int, float]]  # of each call: width to seconds
_SAME_WIDTH_LOSS = 0.02  # neighbours whose common width costs less than this share are one task
_COSTLY_SHARE = 0.1  # of the time of a slice: worth taking over by another core
_SMALL_SHARE = 0.02  # of the time of a neighbour: not worth a task


def call_graph(program: Program) -> List[Set[int]]:
    """For each call the calls that must have ended before it."""
    maker: Dict[int, int] = {}
    before: List[Set[int]] = []
    for number, call in enumerate(program.calls):
        before.append({maker[value] for value in program.reads(number) if value in maker})
        for value in call.results:
            maker[value] = number
    for earlier, later in program.order:
        before[later].add(earlier)
    return before


def chains(program: Program) -> Tuple[Task, ...]:
    """The longest runs of calls that nothing could run beside, with what they start from; by structure."""
    groups = _Groups(call_graph(program), [{1: 0.0}] * len(program.calls))
    groups.join_sources()
    groups.join_chains(lambda first, second: True)
    return groups.tasks()


def merged(program: Program, costs: CallCosts, overhead_s: float) -> Tuple[Task, ...]:
    """Tasks of which none costs less than the overhead unless nothing could take it in."""
    before = call_graph(program)
    groups = _Groups(before, costs)
    for of_slice in slice_groups(program, before):
        for part in slice_parts(of_slice, before, costs):
            groups.join_all(part)
    groups.absorb_small(overhead_s)
    groups.join_chains(lambda first, second: groups.loss_s(first, second) <= overhead_s)
    groups.absorb_small(overhead_s)
    return groups.tasks()


def slice_groups(program: Program, before: Sequence[Set[int]]) -> List[List[int]]:
    """Calls of one slice of the batch that belong together: nothing outside lies between them.

    before: for each call those that must have ended.
    """
    if not program.slices:
        return []
    levels: List[int] = []
    for call, needed in enumerate(before):
        mine = program.slices[call]
        crossed = (
            levels[other] + (program.slices[other] is not None and program.slices[other] != mine)
            for other in needed
        )
        levels.append(max(crossed, default=0))
    found: Dict[Tuple[int, int], List[int]] = {}
    for call, (part, level) in enumerate(zip(program.slices, levels)):
        if part is not None:
            found.setdefault((part, level), []).append(call)
    return list(found.values())


def slice_parts(calls: Sequence[int], before: Sequence[Set[int]], costs: CallCosts) -> List[List[int]]:
    """The calls of a slice, each with the costly one it belongs to: parts that another core can take over.

    What lies before several costly calls is a part of its own, and so is what follows several.
    """
    alone = {call: costs[call][min(costs[call])] for call in calls}
    limit_s = _COSTLY_SHARE * sum(alone.values())
    costly = {call for call in calls if alone[call] >= limit_s}
    if len(costly) < 2:
        return [list(calls)]
    behind: Dict[int, Set[int]] = {}  # costly calls that each depends on
    for call in calls:
        near = [other for other in before[call] if other in alone]
        behind[call] = set().union(*(behind[other] for other in near)) | {c for c in near if c in costly}
    ahead: Dict[int, Set[int]] = {call: set() for call in calls}  # costly calls that need each
    for call in costly:
        waiting = list(before[call])
        while waiting:
            other = waiting.pop()
            if other in alone and call not in ahead[other]:
                ahead[other].add(call)
                waiting += before[other]
    found: Dict[Tuple[str, FrozenSet[int]], List[int]] = {}
    for call in calls:
        last = frozenset(c for c in behind[call] if not any(c in behind[other] for other in behind[call]))
        if call in costly:
            key = ("with", frozenset((call,)))
        elif last:
            key = ("with" if len(last) == 1 else "after", last)
        else:
            key = ("with" if len(ahead[call]) == 1 else "before", frozenset(ahead[call]))
        found.setdefault(key, []).append(call)
    return list(found.values())


def task_costs(tasks: Sequence[Task], costs: CallCosts) -> Tuple[Dict[int, float], ...]:
    """For each task: width to seconds."""
    return tuple(_summed([costs[call] for call in task.calls]) for task in tasks)


def _summed(costs: Sequence[Mapping[int, float]]) -> Dict[int, float]:
    return {width: sum(one[width] for one in costs) for width in costs[0]}


class _Groups:
    """A graph of groups of calls, contracted edge by edge; it stays free of cycles."""

    def __init__(self, before: Sequence[Set[int]], costs: CallCosts) -> None:
        self.calls: Dict[int, List[int]] = {call: [call] for call in range(len(before))}
        self.before: Dict[int, Set[int]] = {call: set(needed) for call, needed in enumerate(before)}
        self.after: Dict[int, Set[int]] = {call: set() for call in range(len(before))}
        for call, needed in enumerate(before):
            for earlier in needed:
                self.after[earlier].add(call)
        self.costs: Dict[int, Dict[int, float]] = {call: dict(cost) for call, cost in enumerate(costs)}

    def loss_s(self, first: int, second: int) -> float:
        """What it costs to run both at one width, beyond what is small beside their time.

        Time and cores weigh differently from plan to plan, so the worst of three weightings counts.
        """
        one, other = self.costs[first], self.costs[second]
        worst = 0.0
        for share in (0.0, 0.5, 1.0):
            mine = {w: (1 - share) * s + share * w * s / max(one) for w, s in one.items()}
            others = {w: (1 - share) * s + share * w * s / max(one) for w, s in other.items()}
            together = min(mine[width] + others[width] for width in one)
            worst = max(worst, together - min(mine.values()) - min(others.values()))
        return worst - _SAME_WIDTH_LOSS * (min(one.values()) + min(other.values()))

    def join_all(self, calls: Sequence[int]) -> None:
        """Joins these calls, none of which is joined yet."""
        for other in calls[1:]:
            self._join(calls[0], other)

    def join_chains(self, may_join: Callable[[int, int], bool]) -> None:
        """Joins each call with its only follower where that follows nothing else."""
        for group in sorted(self.calls):
            while group in self.calls and len(self.after[group]) == 1:
                [follower] = self.after[group]
                if len(self.before[follower]) != 1 or not may_join(group, follower):
                    break
                self._join(group, follower)

    def join_sources(self) -> None:
        """Joins what needs nothing to the only one that needs it."""
        sources = [group for group in sorted(self.calls) if not self.before[group]]  # now, not by joining
        for group in sources:
            if len(self.after[group]) == 1:
                [follower] = self.after[group]
                self._join(follower, group)

    def absorb_small(self, limit_s: float) -> None:
        """Joins what is smaller than its overhead to the only one before or after it."""
        changed = True
        while changed:
            changed = False
            for group in sorted(self.calls):
                if group in self.calls:
                    host = self._host(group, limit_s)
                    if host is not None and self._is_small(group, host, limit_s):
                        self._join(min(host, group), max(host, group))
                        changed = True

    def _is_small(self, group: int, host: int, limit_s: float) -> bool:
        mine = min(self.costs[group].values())
        return mine < limit_s or mine < _SMALL_SHARE * min(self.costs[host].values())

    def _host(self, group: int, limit_s: float) -> Optional[int]:
        before, after = self.before[group], self.after[group]
        if len(before) == 1 and self.after[next(iter(before))] == {group}:  # the end of a branch stays in it
            return next(iter(before))
        if len(after) == 1:  # all it does is feed one other
            return next(iter(after))
        if len(before) == 1:
            return next(iter(before))
        small = [other for other in (*after, *before) if min(self.costs[other].values()) < limit_s]
        return next((other for other in sorted(small) if not self._makes_cycle(group, other)), None)

    def _makes_cycle(self, one: int, other: int) -> bool:
        first, second = (one, other) if other in self.after[one] else (other, one)
        waiting = [group for group in self.after[first] if group != second]
        seen: Set[int] = set()
        while waiting:
            group = waiting.pop()
            if group == second:
                return True
            if group not in seen:
                seen.add(group)
                waiting += self.after[group]
        return False

    def _join(self, kept: int, gone: int) -> None:
        self.calls[kept] = sorted(self.calls[kept] + self.calls.pop(gone))
        self.costs[kept] = _summed([self.costs[kept], self.costs.pop(gone)])
        before, after = self.before.pop(gone), self.after.pop(gone)
        for other in before:
            self.after[other].discard(gone)
            if other != kept:
                self.after[other].add(kept)
        for other in after:
            self.before[other].discard(gone)
            if other != kept:
                self.before[other].add(kept)
        self.before[kept] = (self.before[kept] | before) - {kept, gone}
        self.after[kept] = (self.after[kept] | after) - {kept, gone}

    def tasks(self) -> Tuple[Task, ...]:
        """The groups as tasks, each after those it needs, else in program order."""
        left = {group: len(before) for group, before in self.before.items()}
        ready = [(self.calls[group][0], group) for group, num in left.items() if num == 0]
        heapq.heapify(ready)
        numbers: Dict[int, int] = {}
        found: List[Task] = []
        while ready:
            _, group = heapq.heappop(ready)
            numbers[group] = len(found)
            needs = tuple(sorted(numbers[other] for other in self.before[group]))
            found.append(Task(tuple(self.calls[group]), needs))
            for other in self.after[group]:
                left[other] -= 1
                if left[other] == 0:
                    heapq.heappush(ready, (self.calls[other][0], other))
        return tuple(found)
