"""A process notices that others use its CPUs, from a synthetic /proc and on the real machine."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from corewise.shared_cores import MIN_WINDOW_S, SharedCoresWindow, are_cores_busy, is_busy_load


def write_stat(proc: Path, busy_ticks: dict[int, int]) -> None:
    lines = [f"cpu{cpu} {ticks} 0 0 1000 0 0 0 0 0 0" for cpu, ticks in busy_ticks.items()]
    (proc / "stat").write_text("cpu  0 0 0 0 0 0 0 0 0 0\n" + "\n".join(lines) + "\n")


def measure(proc: Path, added: dict[int, int]) -> float | None:
    write_stat(proc, dict.fromkeys(range(4), 0))
    window = SharedCoresWindow([0, 1], str(proc))
    time.sleep(MIN_WINDOW_S)
    write_stat(proc, {cpu: added.get(cpu, 0) for cpu in range(4)})
    return window.measure_others_cpus()


def test_only_load_on_the_given_cpus_counts(tmp_path: Path) -> None:
    assert measure(tmp_path, {2: 1000, 3: 1000}) == 0.0
    # More ticks than the window holds are limited to the CPUs.
    assert measure(tmp_path, {0: 1000, 1: 1000}) == 2.0


def test_a_short_window_says_nothing(tmp_path: Path) -> None:
    write_stat(tmp_path, {0: 0})
    assert SharedCoresWindow([0], str(tmp_path)).is_busy() is None


def test_a_machine_without_proc_is_quiet(tmp_path: Path) -> None:
    window = SharedCoresWindow([0], str(tmp_path / "absent"))
    time.sleep(MIN_WINDOW_S)
    assert window.is_busy() is False


@pytest.mark.parametrize(("others", "cpus", "busy"), [(0.4, 2, False), (0.5, 2, True), (2.0, 128, False)])
def test_the_system_may_use_a_small_part_of_many_cpus(others: float, cpus: int, busy: bool) -> None:
    assert is_busy_load(others, cpus) is busy


def test_a_busy_loop_on_the_same_cpu_is_noticed() -> None:
    cpu = min(os.sched_getaffinity(0))
    loop = f"import os, time\nos.sched_setaffinity(0, [{cpu}])\nend = time.time() + 60\nwhile time.time() < end: pass"
    other = subprocess.Popen([sys.executable, "-c", loop])
    try:
        time.sleep(0.3)
        assert are_cores_busy([cpu], 1.0)
    finally:
        other.kill()
        other.wait()
