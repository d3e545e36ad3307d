"""Shared code of the benchmark scripts: plan a study text, describe the machine, print a table, write figures."""

from __future__ import annotations

import datetime
import json
import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corewise.run.plan import Plan

WORKLOADS = Path(__file__).resolve().parent / "workloads"


def plan_text(text: str) -> Plan:
    """Plan a study given as text."""
    from corewise.run.plan import plan_study
    from corewise.study.study import load_study

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "benchmark.yaml"
        path.write_text(text)
        return plan_study(load_study(str(path), []))


def describe_machine() -> str:
    """Describe machine and date in one line; shorter if the control side is not installed."""
    today = datetime.date.today().isoformat()
    try:
        from corewise.run.machine_view import read_host
    except ImportError:
        return f"{len(os.sched_getaffinity(0))} CPUs; {today}"
    host = read_host()
    memory_gib = host.allocation.memory_bytes / 2**30
    return f"{host.allocation.num_cores} cores of {host.facts.cpu_model}, {memory_gib:.0f} GiB; {today}"


def compute_quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return lower quartile, median and upper quartile."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def show_seconds(rows: Mapping[str, Sequence[float]]) -> None:
    """Print median and quartiles of each row, in seconds."""
    print(f"{'':44} {'median':>9} {'quartiles':>19}  runs")
    for name, values in rows.items():
        low, middle, high = compute_quartiles(values)
        print(f"{name:44} {middle:9.4f} {low:9.4f}-{high:9.4f}  {len(values)}")


def write_figures(out: Path | None, **figures: Any) -> None:
    """Write the raw figures, together with the machine they were measured on."""
    if out is not None:
        out.write_text(json.dumps({"machine": describe_machine(), **figures}, indent=1) + "\n")
