import errno
import struct
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from corewise.measured.probes.perf_events import (
    SOFTWARE,
    TASK_CLOCK,
    Event,
    EventSet,
    EventsUnavailable,
    Reading,
    compute_running_share,
    correct_multiplexing,
    explain_refusal,
    list_tids,
    open_event,
    pack_attribute,
)

CLOCK = Event(SOFTWARE, TASK_CLOCK)


@pytest.fixture
def needs_events(need: Callable[[bool, str], None]) -> None:
    problem = ""
    try:
        EventSet([CLOCK], list_tids(), user_only=False).close()
    except EventsUnavailable as refusal:
        problem = str(refusal)
    need(not problem, f"software events: {problem}")


def burn_cpu(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_a_count_is_scaled_by_the_time_in_which_it_was_not_counted() -> None:
    assert correct_multiplexing([Reading(1000, enabled_ns=400, running_ns=100)]) == 4000
    assert correct_multiplexing([Reading(1000, enabled_ns=400, running_ns=400)]) == 1000


def test_a_thread_that_did_not_run_counts_nothing() -> None:
    assert correct_multiplexing([Reading(0, 0, 0)]) == 0


def test_an_event_that_never_got_a_counter_has_no_count() -> None:
    assert correct_multiplexing([Reading(0, enabled_ns=400, running_ns=0)]) is None


def test_the_pmus_of_a_hybrid_processor_share_the_time_of_a_thread() -> None:
    fast, efficient = Reading(900, enabled_ns=400, running_ns=300), Reading(100, enabled_ns=400, running_ns=100)
    assert correct_multiplexing([fast, efficient]) == 1000
    assert compute_running_share([fast, efficient]) == 1
    # Half of the time on the efficient cores went to other events.
    assert correct_multiplexing([fast, Reading(50, enabled_ns=400, running_ns=50)]) == pytest.approx(950 * 400 / 350)


def test_the_share_of_counted_time_is_that_of_the_worst_event() -> None:
    assert compute_running_share([Reading(1, 400, 100)]) == 0.25
    assert compute_running_share([Reading(0, 0, 0)]) is None


def test_the_attribute_has_the_layout_of_the_kernel() -> None:
    packed = pack_attribute(Event(4, 0x4843), user_only=True)
    assert struct.unpack_from("=IIQ", packed) == (4, len(packed), 0x4843)
    # Disabled, inherited, without kernel and hypervisor; a value has the two times.
    assert struct.unpack_from("=QQ", packed, 32) == (0b11, 0b1100011)
    assert struct.unpack_from("=Q", pack_attribute(CLOCK, user_only=False), 40) == (0b1000011,)


@pytest.mark.usefixtures("needs_events")
def test_threads_that_exist_and_threads_that_start_later_are_counted() -> None:
    stop = threading.Event()
    earlier = threading.Thread(target=lambda: [burn_cpu(0.01) for _ in iter(stop.is_set, True)])
    earlier.start()
    events = EventSet([CLOCK], list_tids(), user_only=False)
    try:
        before_s = time.process_time()
        events.enable()
        later = threading.Thread(target=burn_cpu, args=(0.1,))
        later.start()
        later.join()
        events.disable()
        used_s = time.process_time() - before_s
        counted_ns = events.read()
        assert counted_ns is not None
        # Task clock and CPU time are both nanoseconds on a CPU.
        assert counted_ns / 1e9 == pytest.approx(used_s, rel=0.2, abs=0.02)
        assert events.read_running_share() == 1
    finally:
        stop.set()
        earlier.join()
        events.close()


@pytest.mark.usefixtures("needs_events")
def test_nothing_is_counted_before_the_events_are_enabled() -> None:
    events = EventSet([CLOCK], list_tids(), user_only=False)
    burn_cpu(0.01)
    assert events.read() == 0
    events.close()


@pytest.mark.usefixtures("needs_events")
def test_a_thread_that_has_ended_is_left_out() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert open_event(CLOCK, ended.pid, user_only=False) is None


def write_paranoid(folder: Path, level: int) -> Path:
    (folder / "kernel").mkdir()
    (folder / "kernel/perf_event_paranoid").write_text(f"{level}\n")
    return folder


def test_forbidden_counters_name_the_setting_and_the_remedy(tmp_path: Path) -> None:
    reason = explain_refusal(errno.EACCES, write_paranoid(tmp_path, 4))
    assert reason.startswith("perf_event_paranoid is 4")
    assert "sudo sysctl kernel.perf_event_paranoid=2" in reason


def test_a_container_that_forbids_the_call_is_named(tmp_path: Path) -> None:
    reason = explain_refusal(errno.EPERM, write_paranoid(tmp_path, 1))
    assert "seccomp" in reason
    assert "--cap-add PERFMON" in reason


@pytest.mark.parametrize(
    ("code", "expected"),
    [(errno.ENOENT, "no PMU"), (errno.ENOSYS, "perf_event_open"), (errno.EMFILE, "ulimit -n"), (errno.E2BIG, "failed")],
)
def test_every_refusal_has_a_reason(code: int, expected: str) -> None:
    assert expected in explain_refusal(code)
