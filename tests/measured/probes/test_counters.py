import os
import threading
from pathlib import Path

import pytest

from corewise.measured.probes.counters import CounterProbe, explain_missing_counters, read_migrations


def test_a_probe_counts_instructions_or_says_why_not() -> None:
    with CounterProbe("auto") as counters:
        counters.start()
        sum(range(100_000))
        counters.stop()
    missing = explain_missing_counters()
    if missing:
        assert counters.facts == {"counters": "none", "counters_reason": missing}
        assert set(counters.metrics) == {"cpu_migrations"}
    else:
        assert counters.metrics["perf_instructions"] > 100_000
        assert counters.metrics["perf_cycles"] > 0
        assert counters.facts["counters_scope"] in ("user", "user and kernel")
    # Without being asked, missing counters are no news.
    assert not counters.note


def test_only_a_study_that_asks_for_hardware_counters_gets_a_note() -> None:
    with CounterProbe("perf") as counters:
        counters.start()
        counters.stop()
    missing = explain_missing_counters()
    assert counters.note == (f"no counts by perf: {missing}" if missing else "")


def test_without_instructions_migrations_are_still_counted() -> None:
    with CounterProbe("none") as counters:
        counters.start()
        counters.stop()
    assert counters.facts == {"counters": "none"}
    assert counters.metrics["cpu_migrations"] >= 0


def test_a_thread_that_changes_its_cpu_is_counted() -> None:
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("one CPU")
    first, second = sorted(allowed)[:2]

    def change_cpu() -> None:
        for cpu in (first, second, first, second):
            os.sched_setaffinity(0, {cpu})

    with CounterProbe("none") as counters:
        counters.start()
        thread = threading.Thread(target=change_cpu)
        thread.start()
        thread.join()
        counters.stop()
    assert counters.metrics["cpu_migrations"] >= 3


def test_the_descriptors_of_counters_are_closed() -> None:
    before = len(os.listdir("/proc/self/fd"))
    with CounterProbe("auto") as counters:
        counters.start()
        counters.stop()
    assert len(os.listdir("/proc/self/fd")) == before


def test_migrations_are_read_from_proc(tmp_path: Path) -> None:
    for tid, num in (("7", 3), ("8", 4)):
        folder = tmp_path / "self/task" / tid
        folder.mkdir(parents=True)
        (folder / "sched").write_text(f"python (7, #threads: 2)\nse.nr_migrations    :    {num}\nnr_switches : 9\n")
    (tmp_path / "self/task/9").mkdir()
    assert read_migrations(str(tmp_path)) == 7
