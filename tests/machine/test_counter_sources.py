import shutil

import pytest

from corewise.machine.counter_sources import CounterSource, explain_missing_valgrind, read_counter_sources
from corewise.measured.probes.counters import explain_missing_counters


def test_each_source_is_there_or_says_why_not() -> None:
    perf, cachegrind = read_counter_sources()
    assert (perf.name, perf.problem) == ("perf", explain_missing_counters())
    assert (cachegrind.name, bool(cachegrind.problem)) == ("cachegrind", shutil.which("valgrind") is None)
    assert all(each.describe() for each in (perf, cachegrind))


def test_a_missing_valgrind_comes_with_a_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert explain_missing_valgrind().startswith("valgrind is not on the PATH: install it")


def test_a_missing_source_is_described_by_its_reason() -> None:
    assert CounterSource("perf", "no PMU").describe() == "none: no PMU"
    assert CounterSource("perf", "", "cycles").describe() == "cycles"
