"""Find calls that must keep their order without a value between them: shared memory, randomness.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

from typing import Dict, FrozenSet, List, Sequence, Set, Tuple


def find_required_order(
    touched: Sequence[FrozenSet[int]], written: Sequence[FrozenSet[int]], is_random: Sequence[bool]
) -> Tuple[Tuple[int, int], ...]:
    """Find pairs (earlier, later) of calls; `touched` and `written` are the storages of each call."""
    pairs: Set[Tuple[int, int]] = set()
    mutable = frozenset().union(*written) if written else frozenset()
    last_writer: Dict[int, int] = {}
    readers: Dict[int, List[int]] = {}
    last_random = -1
    for call, memories in enumerate(touched):
        for memory in memories & mutable:
            writes = memory in written[call]
            if memory in last_writer:
                pairs.add((last_writer[memory], call))
            if writes:
                pairs.update((reader, call) for reader in readers.get(memory, ()))
                last_writer[memory], readers[memory] = call, []
            else:
                readers.setdefault(memory, []).append(call)
        if is_random[call]:
            if last_random >= 0:
                pairs.add((last_random, call))
            last_random = call
    return tuple(sorted(pair for pair in pairs if pair[0] != pair[1]))
