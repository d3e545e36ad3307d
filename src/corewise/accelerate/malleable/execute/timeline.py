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


class TimelineEntry(NamedTuple):
    """One task of one call, in seconds since the start of the call."""

    task: int
    name: str
    lane: int
    cpus: Tuple[int, ...]
    start_s: float
    end_s: float
    is_backward: bool = False


def build_chrome_trace(timeline: Sequence[TimelineEntry]) -> Dict[str, Any]:
    """Build trace events: one row per CPU, a task on each of its CPUs."""
    events: List[Dict[str, Any]] = [
        {"ph": "M", "pid": 1, "tid": cpu, "name": "thread_name", "args": {"name": f"CPU {cpu}"}}
        for cpu in sorted({cpu for entry in timeline for cpu in entry.cpus})
    ]
    for entry in timeline:
        for cpu in entry.cpus:
            events.append(
                {
                    "ph": "X",
                    "pid": 1,
                    "tid": cpu,
                    "name": f"{entry.name}, backward" if entry.is_backward else entry.name,
                    "cat": f"width {len(entry.cpus)}",
                    "ts": entry.start_s * 1e6,
                    "dur": (entry.end_s - entry.start_s) * 1e6,
                    "args": {"task": entry.task, "lane": entry.lane, "width": len(entry.cpus)},
                }
            )
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def format_chrome_trace(timeline: Sequence[TimelineEntry]) -> str:
    """Format the text of a trace file."""
    return json.dumps(build_chrome_trace(timeline))
