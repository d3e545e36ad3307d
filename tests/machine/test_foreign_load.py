"""Load of other processes on the allocation is measured, from synthetic texts and with a real busy process."""

import os
import subprocess
import sys
import time
from pathlib import Path

from corewise.machine.foreign_load import (
    ForeignLoad,
    LoadWindow,
    ProcessTimes,
    find_descendants,
    measure_foreign_load,
    parse_process_stat,
    parse_waiting_us,
)
from corewise.shared_cores import parse_busy_ticks

TAIL = "0 " * 22


def build_stat(pid: int, name: str, parent: int, ticks: int, cpu: int, reaped: int = 0) -> str:
    return f"{pid} ({name}) R {parent} 1 1 0 -1 0 0 0 0 0 {ticks} 0 {reaped} 0 {TAIL[: 2 * 21]}{cpu} 0 0\n"


def write_proc(proc: Path, busy: dict[int, int], processes: list[str], waiting_us: int | None = None) -> None:
    proc.mkdir(exist_ok=True)
    lines = [f"cpu{cpu} {ticks} 0 0 1000 0 0 0 0 0 0" for cpu, ticks in busy.items()]
    (proc / "stat").write_text("cpu  9 9 9 9 9 9 9 9 9 9\n" + "\n".join(lines) + "\nintr 1\n")
    for text in processes:
        folder = proc / text.split()[0]
        folder.mkdir(exist_ok=True)
        (folder / "stat").write_text(text)
    if waiting_us is not None:
        (proc / "pressure").mkdir(exist_ok=True)
        (proc / "pressure" / "cpu").write_text(f"some avg10=1.00 avg60=0.00 avg300=0.00 total={waiting_us}\nfull x\n")


def test_the_busy_ticks_of_each_cpu_leave_out_idle_iowait_and_steal() -> None:
    stat = "cpu  1 1 1 1 1 1 1 1 0 0\ncpu0 10 20 30 4000 500 6 7 800 0 0\ncpu12 1 0 0 9\nintr 5\ncpufreq 1 2 3 4\n"
    assert parse_busy_ticks(stat) == {0: 73, 12: 1}
    assert parse_busy_ticks("") == {}


def test_a_process_may_have_parentheses_and_spaces_in_its_name() -> None:
    times = parse_process_stat(build_stat(41, "a) R 7 (b c", 7, 120, 3, reaped=5))
    assert times == ProcessTimes(41, "a) R 7 (b c", 7, 120, 5, 3)
    assert parse_process_stat("41 (cut") is None
    unprintable = parse_process_stat(build_stat(1, "a\x1b[31m", 0, 0, 0))
    assert unprintable is not None
    assert unprintable.name == "a?[31m"


def test_real_files_of_the_kernel_are_understood() -> None:
    own = parse_process_stat(Path("/proc/self/stat").read_text())
    assert own is not None
    assert (own.pid, own.parent) == (os.getpid(), os.getppid())
    assert set(os.sched_getaffinity(0)) <= set(parse_busy_ticks(Path("/proc/stat").read_text()))


def test_pressure_is_optional() -> None:
    assert parse_waiting_us("some avg10=66.28 avg60=26.68 avg300=6.69 total=23483487\n") == 23483487
    assert parse_waiting_us("") is None


def test_descendants_are_found_over_generations() -> None:
    family = [(1, 0), (2, 1), (3, 2), (4, 3), (9, 1)]
    processes = [ProcessTimes(pid, "p", parent, 0, 0, 0) for pid, parent in family]
    assert find_descendants(processes, 2) == {2, 3, 4}


def test_own_processes_do_not_count_and_the_busiest_of_others_are_named(tmp_path: Path) -> None:
    own = os.getpid()
    before = [build_stat(own, "us", 1, 0, 0), build_stat(777777, "stranger", 1, 0, 1)]
    after = [
        build_stat(own, "us", 1, 3, 0, reaped=2),
        build_stat(777778, "child", own, 4, 0),
        build_stat(777777, "stranger", 1, 10, 1),
        build_stat(777779, "elsewhere", 1, 1000, 2),
    ]
    write_proc(tmp_path, {0: 0, 1: 0, 2: 0}, before, waiting_us=0)
    window = LoadWindow(tmp_path)
    write_proc(tmp_path, {0: 9, 1: 10, 2: 1000}, after, waiting_us=50_000)
    load = window.measure([0, 1], window_s=0.1)
    # The window may be longer than asked for.
    in_ticks = load.window_s * os.sysconf("SC_CLK_TCK")
    assert round(load.others_cpus * in_ticks) == 10
    assert [(each.name, round(each.num_cpus * in_ticks)) for each in load.processes] == [("stranger", 10)]
    assert set(load.busy_shares) == {0, 1}
    assert load.waiting_share is not None
    assert 0 < load.waiting_share <= 0.5
    assert "stranger (pid 777777)" in load.describe()


def test_a_machine_without_proc_is_idle(tmp_path: Path) -> None:
    load = measure_foreign_load([0, 1], 0.0, tmp_path / "absent")
    assert load.others_cpus == 0
    assert not load.is_busy
    assert load.waiting_share is None


def test_many_cpus_need_more_load_to_be_busy() -> None:
    def build(num_cpus: int, others: float) -> ForeignLoad:
        return ForeignLoad(num_cpus, others, {}, (), None, 0.5)

    assert build(2, 0.5).is_busy
    assert not build(2, 0.4).is_busy
    assert not build(128, 2.0).is_busy
    assert build(128, 3.0).is_busy


def test_a_busy_stranger_is_seen_and_a_busy_child_is_not() -> None:
    cpu = min(os.sched_getaffinity(0))
    loop = f"import os, time\nos.sched_setaffinity(0, [{cpu}])\nend = time.time() + 60\nwhile time.time() < end: pass"
    # The shell ends at once, so that the loop is no descendant of this process.
    orphan = subprocess.run(
        ["sh", "-c", '"$0" -c "$1" >/dev/null 2>&1 & echo $!', sys.executable, loop],
        capture_output=True,
        text=True,
        check=True,
    )
    pid = int(orphan.stdout)
    child = subprocess.Popen([sys.executable, "-c", loop])
    try:
        time.sleep(0.2)
        load = measure_foreign_load([cpu], 1.0)
        assert load.others_cpus > 0
        assert child.pid not in {each.pid for each in load.processes}
    finally:
        child.kill()
        child.wait()
        os.kill(pid, 9)
