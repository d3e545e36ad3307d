"""When each task ran, on which CPUs: for people, and for Chrome's and Perfetto's viewers.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import json
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple


class Span(NamedTuple):
    """One task of one call, on the clock of time.perf_counter."""

    task: int
    lane: int
    start_s: float
    end_s: float


class Ran(NamedTuple):
    """One task of one call, from the call's beginning."""

    task: int
    name: str
    lane: int
    cpus: Tuple[int, ...]
    start_s: float
    end_s: float
    is_backward: bool = False


def chrome_trace(timeline: Sequence[Ran]) -> Dict[str, Any]:
    """The timeline as trace events: one row a CPU, a task drawn on each of its CPUs."""
    events: List[Dict[str, Any]] = [
        {"ph": "M", "pid": 1, "tid": cpu, "name": "thread_name", "args": {"name": f"CPU {cpu}"}}
        for cpu in sorted({cpu for ran in timeline for cpu in ran.cpus})
    ]
    for ran in timeline:
        for cpu in ran.cpus:
            events.append(
                {
                    "ph": "X",
                    "pid": 1,
                    "tid": cpu,
                    "name": f"{ran.name}, backward" if ran.is_backward else ran.name,
                    "cat": f"width {len(ran.cpus)}",
                    "ts": ran.start_s * 1e6,
                    "dur": (ran.end_s - ran.start_s) * 1e6,
                    "args": {"task": ran.task, "lane": ran.lane, "width": len(ran.cpus)},
                }
            )
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def written_trace(timeline: Sequence[Ran]) -> str:
    """The text of a trace file."""
    return json.dumps(chrome_trace(timeline))
