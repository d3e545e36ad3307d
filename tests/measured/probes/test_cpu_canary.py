"""The canary loop."""

import pytest

from corewise.measured.probes import cpu_canary


def test_the_canary_takes_a_measurable_time() -> None:
    # This is two orders of magnitude above the resolution of any clock.
    assert cpu_canary.run_canary() > 0.0005


def test_the_canary_reports_the_best_of_its_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    times_s = iter([0.3, 0.1, 0.2])
    monkeypatch.setattr(cpu_canary, "_time_loop", lambda: next(times_s))
    assert cpu_canary.run_canary() == 0.1


def test_a_wrong_result_of_the_canary_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lying(int):
        def __mul__(self, other: int) -> int:
            return int(self) * other + 1

        __rmul__ = __mul__

    monkeypatch.setattr(cpu_canary, "NUM_STEPS", Lying(10))
    with pytest.raises(ArithmeticError, match="wrong number"):
        cpu_canary.run_canary()
