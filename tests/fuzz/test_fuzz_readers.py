"""The long fuzzing run: its table, its figures, and what it counts as a failure."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import fuzz_readers
from fuzz_readers import CaseRunner, run_seeded
from fuzz_targets import TARGETS, ReaderTarget


def make_target() -> ReaderTarget:
    """A reader that fails on some bytes."""

    def check(data: bytes) -> None:
        if b"bad" in data:
            raise KeyError("not declared")

    def mutate(dice: Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
        return dice.choice((b"good", b"bad"))

    return ReaderTarget("store_line", check, mutate, 10)


def test_a_short_run_prints_one_row_for_each_reader_and_writes_its_figures(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    command = [sys.executable, str(BENCHMARKS / "fuzz_readers.py"), "--cases", "30", "--no-atheris", "--json", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {line.split()[0]: line.split() for line in done.stdout.splitlines() if line.split()[0] in TARGETS}
    assert list(rows) == list(TARGETS)
    assert all(row[1:4] == ["30", "0", "0"] for row in rows.values())
    figures = json.loads(out.read_text())
    assert [each["reader"] for each in figures["readers"]] == list(TARGETS)
    assert figures["guidance"] == "without atheris: no coverage guidance"
    assert figures["machine"]


def test_undeclared_errors_are_counted_by_place_and_their_inputs_are_saved(tmp_path: Path) -> None:
    runner = CaseRunner(make_target(), tmp_path)
    run_seeded(runner, [b"good"], 100, seed=1)
    tally = runner.tally
    assert (tally.num_cases, tally.num_slow) == (100, 0)
    assert 20 < tally.num_uncaught < 80
    [(place, num)] = tally.failures.items()
    assert place.startswith("KeyError in test_fuzz_readers.py:")
    assert num == tally.num_uncaught
    [saved] = (tmp_path / "store_line").iterdir()
    assert saved.read_bytes() == b"bad"


def test_equal_seeds_give_equal_cases() -> None:
    target = TARGETS["store_line"]
    seeds = target.read_seeds()
    first, second, other = (
        [target.make_case(dice, seeds[0], seeds) for _ in range(20)] for dice in (Random(1), Random(1), Random(2))
    )
    assert first == second
    assert first != other


def test_a_case_that_takes_longer_than_its_size_allows_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter((0.0, 3.0, 10.0, 13.0))
    monkeypatch.setattr(fuzz_readers.time, "process_time", lambda: next(clock))
    runner = CaseRunner(make_target(), None)
    runner.run(b"x" * 400_000)
    assert (runner.tally.num_slow, runner.tally.slowest_s_per_100kb) == (0, 0.75)
    runner.run(b"x")
    assert (runner.tally.num_slow, runner.tally.slowest_s_per_100kb) == (1, 3.0)
