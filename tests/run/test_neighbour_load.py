"""Load on idle CPUs of the allocation is detected, from a synthetic /proc."""

import time
from pathlib import Path

from corewise.run.neighbour_load import NeighbourWatch


def write_stat(proc: Path, busy_ticks: dict[int, int]) -> None:
    lines = [f"cpu{cpu} {ticks} 0 0 1000 0 0 0 0 0 0" for cpu, ticks in busy_ticks.items()]
    (proc / "stat").write_text("cpu  0 0 0 0 0 0 0 0 0 0\n" + "\n".join(lines) + "\nintr 1\n")


def observe(proc: Path, idle: set[int], added: dict[int, int]) -> tuple[str, ...]:
    write_stat(proc, dict.fromkeys(range(128), 0))
    with NeighbourWatch(idle, proc) as watch:
        time.sleep(0.01)
        write_stat(proc, {cpu: added.get(cpu, 0) for cpu in range(128)})
    return watch.disturbances


def test_a_busy_neighbour_is_reported(tmp_path: Path) -> None:
    [note] = observe(tmp_path, {1, 2}, {2: 1000})
    assert "of the 2 idle CPUs" in note


def test_load_outside_the_idle_cpus_is_ignored(tmp_path: Path) -> None:
    assert observe(tmp_path, {1, 2}, {0: 1000, 3: 1000}) == ()
    assert observe(tmp_path, set(), {0: 1000}) == ()


def test_a_few_ticks_are_within_the_resolution(tmp_path: Path) -> None:
    assert observe(tmp_path, {1}, {1: 4}) == ()


def test_a_machine_without_proc_stat_reports_nothing(tmp_path: Path) -> None:
    with NeighbourWatch({0}, tmp_path / "absent") as watch:
        pass
    assert watch.disturbances == ()
