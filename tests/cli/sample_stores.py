"""Records and stores like those of a few studies, for tests of the verbs that show them."""

from pathlib import Path
from typing import Any

from tests.store.made_records import made_record, made_run

from corewise.store.store import Store
from corewise.study.record import Record

THREAD_STEPS_S = {1: 8.1, 2: 4.3, 4: 2.31, 8: 1.32, 16: 1.318}


def scaling_records(**changes: Any) -> list[Record]:
    """Build records over threads whose last two do not differ significantly."""
    return [
        made_record(f"{threads:02d}abcdef01", step_s, params={"threads": threads, **changes.pop("params", {})})
        for threads, step_s in THREAD_STEPS_S.items()
    ]


def hybrid_records() -> list[Record]:
    """Build records over processes, threads and layout in inference, one of them disturbed."""
    made = []
    for i, (processes, threads) in enumerate([(1, 16), (4, 4), (16, 1)]):
        for layout in ("contiguous", "channels_last"):
            step_s = (2.0 - 0.4 * i) * (0.5 if layout == "channels_last" else 1)
            params = {"processes": processes, "threads": threads, "memory_format": layout, "mode": "infer"}
            made.append(made_record(f"h{i}{layout[:2]}5678", step_s, study="hybrid", question="", params=params))
    run = made_run(1.6, disturbances=["another process used 0.93 CPUs"])
    made[1] = made_record("h0ch5678", 1.0, study="hybrid", question="", params=made[1].params, runs=(run,) * 3)
    return made


def unmeasured_records() -> list[Record]:
    """Build records of failed and skipped trials."""
    none: dict[str, Any] = {"metrics": {}, "runs": ()}
    failed = made_record(
        "f00dface", status="failed", kind="memory", reason="rank 0 was killed for want of memory",
        params={"threads": 16, "batch": 4096}, **none,
    )  # fmt: skip
    skipped = [
        made_record(
            f"5{threads:07d}", status="skipped", kind="infeasible", params={"threads": threads},
            reason="more threads than the allocation has cores (16)", **none,
        )
        for threads in (24, 32, 48, 64, 96, 128)
    ]  # fmt: skip
    return [failed, *skipped]


def write_store(path: Path, *records: Record) -> Store:
    """Write a store with these records and return it."""
    store = Store.open(path)
    for record in records:
        store.append(record)
    return store
