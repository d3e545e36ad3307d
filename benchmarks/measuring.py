"""What the benchmark scripts share: a throw-away study, the machine in a line, a table, a kept file."""

from __future__ import annotations

import datetime
import json
import os
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corewise.engine.plan import Plan

WORKLOADS = Path(__file__).resolve().parent / "workloads"


def plan_of(text: str) -> Plan:
    """The plan of a study written in a script."""
    from corewise.engine.plan import make_plan
    from corewise.spec.study import load_study

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "benchmark.yaml"
        path.write_text(text)
        return make_plan(load_study(str(path), []))


def machine_line() -> str:
    """The machine and the date, for RESULTS.md; with less of it where the control side is not installed."""
    today = datetime.date.today().isoformat()
    try:
        from corewise.engine.machine_view import read_host
    except ImportError:
        return f"{len(os.sched_getaffinity(0))} CPUs; {today}"
    host = read_host()
    memory_gib = host.allocation.memory_bytes / 2**30
    return f"{host.allocation.num_cores} cores of {host.facts.cpu_model}, {memory_gib:.0f} GiB; {today}"


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def show_seconds(rows: dict[str, Sequence[float]]) -> None:
    """Median and quartiles of each row, in seconds."""
    print(f"{'':44} {'median':>9} {'quartiles':>19}  runs")
    for name, values in rows.items():
        low, middle, high = quartiles(values)
        print(f"{name:44} {middle:9.4f} {low:9.4f}-{high:9.4f}  {len(values)}")


def keep(out: Path | None, **figures: Any) -> None:
    """Write the raw figures beside the machine they were measured on."""
    if out is not None:
        out.write_text(json.dumps({"machine": machine_line(), **figures}, indent=1) + "\n")
