"""The disturbance probe, on live processes and on synthetic /proc and cgroup trees."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from corewise.measured.probes.disturbances import TICK_S, DisturbanceProbe, describe_disturbances

CPU = max(os.sched_getaffinity(0))
QUIET = {"wall_s": 1.0, "other_cpu_s": 0.0, "steal_s": 0.0, "throttled_periods": 0.0, "throttled_s": 0.0}


def forked_on_one_cpu(work: Callable[[int], object]) -> tuple[int, int]:
    """Fork a child confined to CPU; return its process id and the pipe to which it may write."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        os.sched_setaffinity(0, {CPU})
        work(writer)
        os._exit(0)
    os.close(writer)
    return pid, reader


def burn(writer: int) -> None:
    os.write(writer, b"x")
    while True:
        pass


def burn_a_fifth_of_a_second_and_stay(writer: int) -> None:
    while time.process_time() < 0.2:
        pass
    os.write(writer, b"x")
    signal.pause()


def metrics_of(work: Callable[[], None]) -> dict[str, float]:
    """Return the metrics of the probe in a separate process, which other children of the test may disturb."""

    def watch(writer: int) -> None:
        with DisturbanceProbe([CPU]) as probe:
            work()
        os.write(writer, json.dumps(probe.metrics).encode())

    pid, reader = forked_on_one_cpu(watch)
    with open(reader, "rb") as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    return dict(json.loads(text))


def end(pid: int, reader: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(reader)


def work_for_half_a_second() -> None:
    until = time.perf_counter() + 0.5
    while time.perf_counter() < until:
        pass


def test_a_co_runner_on_the_ranks_cpu_is_reported() -> None:
    pid, reader = forked_on_one_cpu(burn)
    os.read(reader, 1)
    metrics = metrics_of(work_for_half_a_second)
    end(pid, reader)
    assert metrics["other_cpu_s"] > 0.1
    assert metrics["involuntary_switches"] > 0
    (sentence,) = [s for s in describe_disturbances(metrics, 1) if "other processes" in s]
    assert "on the rank's CPUs" in sentence


def test_the_cpu_time_of_living_children_is_the_processs_own() -> None:
    def wait_for_a_worker() -> None:
        pid, reader = forked_on_one_cpu(burn_a_fifth_of_a_second_and_stay)
        os.read(reader, 1)
        children.append((pid, reader))

    children: list[tuple[int, int]] = []
    with DisturbanceProbe([CPU]) as probe:
        used_before = time.process_time()
        wait_for_a_worker()
        used = time.process_time() - used_before
    end(*children[0])
    assert probe.metrics["own_cpu_s"] - used > 0.2 - 3 * TICK_S


def test_the_cpu_time_of_reaped_children_is_the_processs_own() -> None:
    def fork_and_reap() -> None:
        pid, reader = forked_on_one_cpu(burn_a_fifth_of_a_second_and_stay)
        os.read(reader, 1)
        end(pid, reader)

    assert metrics_of(fork_and_reap)["own_cpu_s"] > 0.2 - 3 * TICK_S


def test_own_work_is_counted_with_its_faults_and_switches() -> None:
    def touch_and_sleep() -> None:
        block = bytearray(64 << 20)
        for start in range(0, len(block), 4096):
            block[start] = 1
        time.sleep(0.01)
        work_for_half_a_second()

    metrics = metrics_of(touch_and_sleep)
    assert metrics["wall_s"] >= 0.5
    assert metrics["own_cpu_s"] > 0
    # Huge pages of 2 MiB may hold it with 32 faults.
    assert metrics["minor_faults"] >= 16
    assert metrics["voluntary_switches"] >= 1
    assert metrics["own_cpu_s"] <= metrics["wall_s"] + TICK_S


def test_metrics_are_kept_when_the_work_raises() -> None:
    probe = DisturbanceProbe([CPU])
    with pytest.raises(ZeroDivisionError), probe:
        _ = 1 / 0
    assert probe.metrics["wall_s"] >= 0


def write_tree(root: Path, stat: str, cgroup: str = "0::/\n", throttling: dict[str, str] | None = None) -> None:
    (root / "proc" / "self").mkdir(parents=True, exist_ok=True)
    (root / "proc" / "stat").write_text(stat)
    (root / "proc" / "self" / "cgroup").write_text(cgroup)
    for folder, text in (throttling or {}).items():
        (root / "cgroup" / folder).mkdir(parents=True, exist_ok=True)
        (root / "cgroup" / folder / "cpu.stat").write_text(text)


def test_only_the_given_cpus_count_and_guests_are_not_counted_twice(tmp_path: Path) -> None:
    write_tree(tmp_path, "cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 0 0 0 0 0 0 0 0 0 0\ncpu10 0 0 0 0 0 0 0 0 0 0\nintr 5\n")
    with DisturbanceProbe([10], str(tmp_path / "proc"), str(tmp_path / "cgroup")) as probe:
        write_tree(tmp_path, "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 9 9 9 9 9 9 9 9 9 9\ncpu10 100 10 20 7 7 3 2 40 100 0\n")
    assert probe.metrics["busy_cpu_s"] == pytest.approx(135 * TICK_S)
    assert probe.metrics["steal_s"] == pytest.approx(40 * TICK_S)


@pytest.mark.parametrize(
    ("cgroup", "folder", "before", "after"),
    [
        ("0::/a/b\n", "a", "nr_throttled 5\nthrottled_usec 1000000\n", "nr_throttled 7\nthrottled_usec 1250000\n"),
        ("0::/not/visible/here\n", ".", "nr_throttled 0\n", "nr_throttled 2\nthrottled_usec 250000\n"),
        (
            "5:cpu,cpuacct:/job\n1:name=systemd:/job\n0::/\n",
            "cpu,cpuacct/job",
            "nr_periods 9\nnr_throttled 5\nthrottled_time 1000000000\n",
            "nr_periods 20\nnr_throttled 7\nthrottled_time 1250000000\n",
        ),
    ],
    ids=["version 2, quota above us", "version 2 in a container", "version 1"],
)
def test_throttling_is_read_from_cgroups(tmp_path: Path, cgroup: str, folder: str, before: str, after: str) -> None:
    stat = "cpu0 0 0 0 0 0 0 0 0 0 0\n"
    write_tree(tmp_path, stat, cgroup, {folder: before})
    with DisturbanceProbe([0], str(tmp_path / "proc"), str(tmp_path / "cgroup")) as probe:
        write_tree(tmp_path, stat, cgroup, {folder: after})
    assert probe.metrics["throttled_periods"] == 2
    assert probe.metrics["throttled_s"] == pytest.approx(0.25)
    assert describe_disturbances(probe.metrics, 1) == [
        "the CPU quota of the cgroup throttled the process (2 periods, 0.25 s)"
    ]


def test_a_quiet_interval_has_no_disturbance() -> None:
    assert describe_disturbances(QUIET, 16) == []


@pytest.mark.parametrize("num_cpus", [1, 2, 16, 128])
def test_half_a_core_taken_by_others_is_found_however_many_cores_there_are(num_cpus: int) -> None:
    assert describe_disturbances({**QUIET, "other_cpu_s": 0.5}, num_cpus) == [
        "other processes used 0.50 s of CPU on the rank's CPUs in 1.00 s"
    ]


def test_times_below_the_clock_tick_are_no_disturbance() -> None:
    assert describe_disturbances({**QUIET, "wall_s": 0.05, "other_cpu_s": 2 * TICK_S, "steal_s": 2 * TICK_S}, 1) == []
    assert describe_disturbances({**QUIET, "other_cpu_s": 6 * TICK_S}, 16) == []
    assert describe_disturbances({**QUIET, "other_cpu_s": 6 * TICK_S}, 1) != []


def test_steal_beyond_two_per_cent_of_the_cpus_is_a_disturbance() -> None:
    assert describe_disturbances({**QUIET, "steal_s": 0.3}, 16) == []
    assert describe_disturbances({**QUIET, "steal_s": 0.35}, 16) == [
        "the hypervisor took 0.35 s of CPU from the rank's CPUs in 1.00 s"
    ]
