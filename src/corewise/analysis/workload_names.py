"""Short names for users' own workloads: the file name, with as many folders as make it unique."""

import re
from collections.abc import Iterable, Mapping

_USER_FILE = re.compile(r".*[/\\][^/\\]+\.py:\w+", flags=re.DOTALL)


def shorten_workload_names(workloads: Iterable[str]) -> Mapping[str, str]:
    """Map each workload to a short, unique name.

    For example, /home/me/mine.py:make becomes mine.py:make, or me/mine.py:make if there is another mine.py.
    """
    parts = {each: _split_path(each) for each in workloads}
    return {each: _find_shortest_name(own, [p for p in parts.values() if p != own]) for each, own in parts.items()}


def _split_path(workload: str) -> tuple[str, ...]:
    """Split the path of a user's file; a shipped workload is one part."""
    return tuple(re.split(r"[/\\]", workload)) if _USER_FILE.fullmatch(workload) else (workload,)


def _find_shortest_name(own: tuple[str, ...], others: Iterable[tuple[str, ...]]) -> str:
    num = 1 + max((_count_shared_parts(own, other) for other in others), default=0)
    return "/".join(own[-num:])


def _count_shared_parts(first: tuple[str, ...], second: tuple[str, ...]) -> int:
    """Count the equal parts at the end of two paths."""
    num = 0
    for one, other in zip(reversed(first), reversed(second), strict=False):
        if one != other:
            break
        num += 1
    return num
