"""Merge calls into tasks that are longer than their overhead, and keep branches and width changes.

Measured side: standard library only, Python 3.9. Pure.
"""

from __future__ import annotations

import heapq
from typing import Callable, Dict, FrozenSet, List, Mapping, Optional, Sequence, Set, Tuple

from corewise.accelerate.capture.program import Program
from corewise.accelerate.malleable.plan.schedule import OperatorTask

# Seconds of each call by width.
CallCosts = Sequence[Mapping[int, float]]
# Neighbours are merged if their common width costs less than this share of their time.
_TOLERATED_LOSS_SHARE = 0.02
# A call that takes at least this share of a slice is worth running on another core.
_COSTLY_SHARE = 0.1
# A call that takes less than this share of its neighbour's time is not worth a task.
_SMALL_SHARE = 0.02


def build_call_graph(program: Program) -> List[Set[int]]:
    """Build for each call the set of calls that must have ended before it."""
    maker: Dict[int, int] = {}
    before: List[Set[int]] = []
    for number, call in enumerate(program.calls):
        before.append({maker[value] for value in program.list_reads(number) if value in maker})
        for value in call.results:
            maker[value] = number
    for earlier, later in program.order:
        before[later].add(earlier)
    return before


def find_chains(program: Program) -> Tuple[OperatorTask, ...]:
    """Find maximal sequences of calls without parallel branches, including their sources, by structure."""
    groups = _CallGroups(build_call_graph(program), [{1: 0.0}] * len(program.calls))
    groups.join_sources()
    groups.join_chains(lambda first, second: True)
    return groups.build_tasks()


def merge_calls(program: Program, costs: CallCosts, overhead_s: float) -> Tuple[OperatorTask, ...]:
    """Merge calls into tasks; one cheaper than the overhead remains only if nothing can absorb it."""
    before = build_call_graph(program)
    groups = _CallGroups(before, costs)
    for of_slice in group_slices(program, before):
        for part in split_slice(of_slice, before, costs):
            groups.join_all(part)
    groups.merge_small(overhead_s)
    groups.join_chains(lambda first, second: groups.estimate_loss_s(first, second) <= overhead_s)
    groups.merge_small(overhead_s)
    return groups.build_tasks()


def group_slices(program: Program, before: Sequence[Set[int]]) -> List[List[int]]:
    """Group calls of one slice of the batch that have no outside call between them.

    before: for each call those that must have ended.
    """
    if not program.slices:
        return []
    levels: List[int] = []
    for call, needed in enumerate(before):
        own_slice = program.slices[call]
        crossed = (
            levels[other] + (program.slices[other] is not None and program.slices[other] != own_slice)
            for other in needed
        )
        levels.append(max(crossed, default=0))
    groups: Dict[Tuple[int, int], List[int]] = {}
    for call, (part, level) in enumerate(zip(program.slices, levels)):
        if part is not None:
            groups.setdefault((part, level), []).append(call)
    return list(groups.values())


def split_slice(calls: Sequence[int], before: Sequence[Set[int]], costs: CallCosts) -> List[List[int]]:
    """Split the calls of a slice around its costly ones, into parts that other cores can take over.

    Calls before several costly ones form a separate part, and so do calls after several.
    """
    alone = {call: costs[call][min(costs[call])] for call in calls}
    limit_s = _COSTLY_SHARE * sum(alone.values())
    costly = {call for call in calls if alone[call] >= limit_s}
    if len(costly) < 2:
        return [list(calls)]
    # Costly calls that each call depends on.
    behind: Dict[int, Set[int]] = {}
    for call in calls:
        inner_before = [other for other in before[call] if other in alone]
        behind[call] = set().union(*(behind[other] for other in inner_before)) | {
            c for c in inner_before if c in costly
        }
    # Costly calls that need each call.
    ahead: Dict[int, Set[int]] = {call: set() for call in calls}
    for call in costly:
        waiting = list(before[call])
        while waiting:
            other = waiting.pop()
            if other in alone and call not in ahead[other]:
                ahead[other].add(call)
                waiting += before[other]
    parts: Dict[Tuple[str, FrozenSet[int]], List[int]] = {}
    for call in calls:
        last = frozenset(c for c in behind[call] if not any(c in behind[other] for other in behind[call]))
        if call in costly:
            key = ("with", frozenset((call,)))
        elif last:
            key = ("with" if len(last) == 1 else "after", last)
        else:
            key = ("with" if len(ahead[call]) == 1 else "before", frozenset(ahead[call]))
        parts.setdefault(key, []).append(call)
    return list(parts.values())


def sum_task_costs(tasks: Sequence[OperatorTask], costs: CallCosts) -> Tuple[Dict[int, float], ...]:
    """Sum for each task the seconds by width."""
    return tuple(_sum_costs([costs[call] for call in task.calls]) for task in tasks)


def _sum_costs(costs: Sequence[Mapping[int, float]]) -> Dict[int, float]:
    return {width: sum(one[width] for one in costs) for width in costs[0]}


class _CallGroups:
    """A graph of groups of calls, contracted edge by edge; it stays acyclic."""

    def __init__(self, before: Sequence[Set[int]], costs: CallCosts) -> None:
        self.calls: Dict[int, List[int]] = {call: [call] for call in range(len(before))}
        self.before: Dict[int, Set[int]] = {call: set(needed) for call, needed in enumerate(before)}
        self.after: Dict[int, Set[int]] = {call: set() for call in range(len(before))}
        for call, needed in enumerate(before):
            for earlier in needed:
                self.after[earlier].add(call)
        self.costs: Dict[int, Dict[int, float]] = {call: dict(cost) for call, cost in enumerate(costs)}

    def estimate_loss_s(self, first: int, second: int) -> float:
        """Estimate what running both at one width costs, beyond a tolerated share.

        Plans weigh time and cores differently, so the worst of three weightings counts.
        """
        one, other = self.costs[first], self.costs[second]
        worst = 0.0
        for share in (0.0, 0.5, 1.0):
            first_cost = {w: (1 - share) * s + share * w * s / max(one) for w, s in one.items()}
            second_cost = {w: (1 - share) * s + share * w * s / max(one) for w, s in other.items()}
            together = min(first_cost[width] + second_cost[width] for width in one)
            worst = max(worst, together - min(first_cost.values()) - min(second_cost.values()))
        return worst - _TOLERATED_LOSS_SHARE * (min(one.values()) + min(other.values()))

    def join_all(self, calls: Sequence[int]) -> None:
        """Join these calls, none of which is joined yet, except where that would close a cycle."""
        if self._has_path_back(calls):
            groups: List[int] = []
            for call in calls:
                host = next((group for group in groups if not self._has_path_back((group, call))), None)
                if host is None:
                    groups.append(call)
                else:
                    self._join(host, call)
            return
        for other in calls[1:]:
            self._join(calls[0], other)

    def _has_path_back(self, groups: Sequence[int]) -> bool:
        """Return whether a path leaves these groups and enters them again."""
        inside = set(groups)
        waiting = [follower for group in groups for follower in self.after[group] if follower not in inside]
        seen = set(waiting)
        while waiting:
            for follower in self.after[waiting.pop()]:
                if follower in inside:
                    return True
                if follower not in seen:
                    seen.add(follower)
                    waiting.append(follower)
        return False

    def join_chains(self, can_join: Callable[[int, int], bool]) -> None:
        """Join each call with its only follower if that follows nothing else."""
        for group in sorted(self.calls):
            while group in self.calls and len(self.after[group]) == 1:
                [follower] = self.after[group]
                if len(self.before[follower]) != 1 or not can_join(group, follower):
                    break
                self._join(group, follower)

    def join_sources(self) -> None:
        """Join calls without predecessors to the only one that needs them."""
        # Computed first, because joining changes it.
        sources = [group for group in sorted(self.calls) if not self.before[group]]
        for group in sources:
            if len(self.after[group]) == 1:
                [follower] = self.after[group]
                self._join(follower, group)

    def merge_small(self, limit_s: float) -> None:
        """Join groups smaller than the overhead to the only one before or after them."""
        changed = True
        while changed:
            changed = False
            for group in sorted(self.calls):
                if group in self.calls:
                    host = self._find_host(group, limit_s)
                    if host is not None and self._is_small(group, host, limit_s):
                        self._join(min(host, group), max(host, group))
                        changed = True

    def _is_small(self, group: int, host: int, limit_s: float) -> bool:
        seconds = min(self.costs[group].values())
        return seconds < limit_s or seconds < _SMALL_SHARE * min(self.costs[host].values())

    def _find_host(self, group: int, limit_s: float) -> Optional[int]:
        before, after = self.before[group], self.after[group]
        # The end of a branch stays in the branch.
        if len(before) == 1 and self.after[next(iter(before))] == {group}:
            return next(iter(before))
        # It only feeds one other group.
        if len(after) == 1:
            return next(iter(after))
        if len(before) == 1:
            return next(iter(before))
        small = [other for other in (*after, *before) if min(self.costs[other].values()) < limit_s]
        return next((other for other in sorted(small) if not self._has_path_back((group, other))), None)

    def _join(self, target: int, absorbed: int) -> None:
        self.calls[target] = sorted(self.calls[target] + self.calls.pop(absorbed))
        self.costs[target] = _sum_costs([self.costs[target], self.costs.pop(absorbed)])
        before, after = self.before.pop(absorbed), self.after.pop(absorbed)
        for other in before:
            self.after[other].discard(absorbed)
            if other != target:
                self.after[other].add(target)
        for other in after:
            self.before[other].discard(absorbed)
            if other != target:
                self.before[other].add(target)
        self.before[target] = (self.before[target] | before) - {target, absorbed}
        self.after[target] = (self.after[target] | after) - {target, absorbed}

    def build_tasks(self) -> Tuple[OperatorTask, ...]:
        """Build tasks from the groups, each after those it needs, else in program order."""
        num_missing = {group: len(before) for group, before in self.before.items()}
        ready = [(self.calls[group][0], group) for group, num in num_missing.items() if num == 0]
        heapq.heapify(ready)
        numbers: Dict[int, int] = {}
        tasks: List[OperatorTask] = []
        while ready:
            _, group = heapq.heappop(ready)
            numbers[group] = len(tasks)
            needs = tuple(sorted(numbers[other] for other in self.before[group]))
            tasks.append(OperatorTask(tuple(self.calls[group]), needs))
            for other in self.after[group]:
                num_missing[other] -= 1
                if num_missing[other] == 0:
                    heapq.heappush(ready, (self.calls[other][0], other))
        if len(tasks) != len(self.calls):
            raise RuntimeError("merged calls need each other: no order of the tasks runs all of them")
        return tuple(tasks)
