"""Columns of instruction counters for tables, each with the source of its counts."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from corewise.measured.probes.counter_names import CACHEGRIND, PERF

_HINTS_OF_SOURCES = {
    PERF: "counted by the processor while the ranks sampled, over all threads of the ranks",
    CACHEGRIND: "counted by cachegrind on one rank and one thread with at most AVX2, caches simulated",
}
# One sentence for each source, below a table.
NOTES_OF_SOURCES = {
    PERF: "hardware counters while the ranks sampled; MPKI: misses of the last cache level per 1000 instructions.",
    CACHEGRIND: "one rank on one thread, at most AVX2; MPKI: misses of the simulated last cache level per 1000 "
    "instructions.",
}


@dataclass(frozen=True)
class CounterColumn:
    """A metric of a source as a column; values are divided by `scale`."""

    metric: str
    source: str
    title: str
    short_title: str
    hint: str
    unit: str = ""
    scale: float = 1.0


# Name without source, title, unit, short title, hint and scale.
_QUANTITIES = (
    (
        "instructions_per_sample",
        "instructions",
        "10⁶/sample",
        "M instr./ sample",
        "executed instructions per sample",
        1e6,
    ),
    (
        "instructions_per_megapixel",
        "instructions",
        "10⁹/megapixel",
        "G instr./ Mpixel",
        "executed instructions per million pixels of the input",
        1e9,
    ),
    ("ipc", "IPC", "", "IPC", "instructions per cycle", 1.0),
    ("mpki", "MPKI", "", "MPKI", "misses of the last cache level per thousand instructions", 1.0),
)
COUNTER_COLUMNS: tuple[CounterColumn, ...] = tuple(
    CounterColumn(
        metric=f"{source}_{name}",
        source=source,
        title=f"{title} ({source})",
        short_title=f"{source} {short}",
        hint=f"{hint}; {_HINTS_OF_SOURCES[source]}",
        unit=unit,
        scale=scale,
    )
    for source in (PERF, CACHEGRIND)
    for name, title, unit, short, hint, scale in _QUANTITIES
)


def select_counters(metrics: Mapping[str, float]) -> dict[str, float]:
    """Select the metrics of a record that have a column."""
    return {column.metric: metrics[column.metric] for column in COUNTER_COLUMNS if column.metric in metrics}


def list_counter_columns(names: Collection[str]) -> list[CounterColumn]:
    """Return the columns of the metrics that at least one row has."""
    return [column for column in COUNTER_COLUMNS if column.metric in names]
