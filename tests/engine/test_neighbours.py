"""Work on our idle CPUs is noticed, on a made-up /proc."""

import time
from pathlib import Path

from corewise.engine.neighbours import Neighbours


def write_stat(proc: Path, busy_ticks: dict[int, int]) -> None:
    lines = [f"cpu{cpu} {ticks} 0 0 1000 0 0 0 0 0 0" for cpu, ticks in busy_ticks.items()]
    (proc / "stat").write_text("cpu  0 0 0 0 0 0 0 0 0 0\n" + "\n".join(lines) + "\nintr 1\n")


def seen(proc: Path, idle: set[int], added: dict[int, int]) -> tuple[str, ...]:
    write_stat(proc, dict.fromkeys(range(128), 0))
    with Neighbours(idle, proc) as watch:
        time.sleep(0.01)
        write_stat(proc, {cpu: added.get(cpu, 0) for cpu in range(128)})
    return watch.told


def test_a_busy_neighbour_is_told(tmp_path: Path) -> None:
    [told] = seen(tmp_path, {1, 2}, {2: 1000})
    assert "of the 2 idle CPUs" in told


def test_work_on_cpus_that_are_not_ours_or_in_use_is_passed_by(tmp_path: Path) -> None:
    assert seen(tmp_path, {1, 2}, {0: 1000, 3: 1000}) == ()
    assert seen(tmp_path, set(), {0: 1000}) == ()


def test_a_few_ticks_are_within_the_grain(tmp_path: Path) -> None:
    assert seen(tmp_path, {1}, {1: 4}) == ()


def test_a_machine_without_proc_stat_tells_nothing(tmp_path: Path) -> None:
    with Neighbours({0}, tmp_path / "absent") as watch:
        pass
    assert watch.told == ()
