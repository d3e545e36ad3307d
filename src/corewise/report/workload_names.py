"""Own workloads by short names: the file without its folders, or with those that tell it from others."""

import re
from collections.abc import Iterable, Mapping

_OWN = re.compile(r".*[/\\][^/\\]+\.py:\w+", flags=re.DOTALL)


def distinct_names(workloads: Iterable[str]) -> Mapping[str, str]:
    """Workload -> name: mine.py:make of /home/me/mine.py:make, me/mine.py:make if another is called so."""
    parts = {each: _parts(each) for each in workloads}
    return {each: _shortest(own, [p for p in parts.values() if p != own]) for each, own in parts.items()}


def _parts(workload: str) -> tuple[str, ...]:
    """Folders and file; what is no file of one's own is one part."""
    return tuple(re.split(r"[/\\]", workload)) if _OWN.fullmatch(workload) else (workload,)


def _shortest(own: tuple[str, ...], others: Iterable[tuple[str, ...]]) -> str:
    num = 1 + max((_num_alike(own, other) for other in others), default=0)
    return "/".join(own[-num:])


def _num_alike(first: tuple[str, ...], second: tuple[str, ...]) -> int:
    """How many parts are the same, counted from the last."""
    num = 0
    for one, other in zip(reversed(first), reversed(second), strict=False):
        if one != other:
            break
        num += 1
    return num
