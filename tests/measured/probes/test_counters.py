import os
import resource
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from corewise.measured.probes import counters as counters_module
from corewise.measured.probes.counter_events import CounterEvents
from corewise.measured.probes.counters import CounterProbe, explain_missing_counters, read_migrations
from corewise.measured.probes.perf_events import (
    PAGE_FAULTS,
    SOFTWARE,
    TASK_CLOCK,
    Event,
    EventSet,
    EventsUnavailable,
    list_tids,
)


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


CLOCK, FAULTS = (Event(SOFTWARE, TASK_CLOCK),), (Event(SOFTWARE, PAGE_FAULTS),)
# No PMU has this type.
UNKNOWN = (Event(9999, 1),)


def count_software_events(monkeypatch: pytest.MonkeyPatch, misses: tuple[Event, ...]) -> CounterProbe:
    """Count with events that need no PMU in the place of those of the processor."""
    events = CounterEvents({"cycles": CLOCK, "instructions": CLOCK, "llc_misses": misses}, "faults")
    monkeypatch.setattr(counters_module, "choose_events", lambda _processor: events)
    with CounterProbe("perf") as counters:
        sum(range(100_000))
        counters.start()
        thread = threading.Thread(target=lambda: bytearray(8 << 20))
        thread.start()
        thread.join()
        counters.stop()
    return counters


@pytest.fixture
def software_events(need: Callable[[bool, str], None]) -> None:
    problem = ""
    try:
        EventSet(CLOCK, list_tids(), user_only=False).close()
    except EventsUnavailable as refusal:
        problem = str(refusal)
    need(not problem, f"software events: {problem}")


@pytest.mark.usefixtures("software_events")
def test_every_quantity_is_counted_over_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    counters = count_software_events(monkeypatch, FAULTS)
    assert counters.facts["counters"] == "perf"
    assert counters.facts["perf_miss_event"] == "faults"
    assert counters.facts["perf_running_share"] == 1
    assert counters.metrics["perf_instructions"] > 0
    assert counters.metrics["perf_cycles"] > 0
    # The thread wrote to two thousand new pages, or to four huge ones.
    assert counters.metrics["perf_llc_misses"] >= 4
    assert not counters.note


@pytest.mark.usefixtures("software_events")
def test_instructions_are_counted_without_an_event_for_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    counters = count_software_events(monkeypatch, UNKNOWN)
    assert counters.metrics["perf_instructions"] > 0
    assert "perf_llc_misses" not in counters.metrics
    assert "perf_miss_event" not in counters.facts


@pytest.mark.usefixtures("software_events")
def test_too_few_descriptors_are_a_reason_and_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    fillers: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limits[0], 200), limits[1]))
    try:
        with suppress(OSError):
            while True:
                fillers.append(os.dup(0))
        # Migrations and cycles get one each.
        for _ in range(2):
            os.close(fillers.pop())
        counters = count_software_events(monkeypatch, FAULTS)
    finally:
        for fd in fillers:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert counters.facts["counters"] == "none"
    assert "ulimit -n" in counters.note
    assert "perf_instructions" not in counters.metrics
