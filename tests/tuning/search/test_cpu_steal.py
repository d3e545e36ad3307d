"""When a sampling counts as disturbed by the hypervisor."""

from corewise.tuning.search.cpu_steal import (
    DISTURBING_SHARE,
    LONG_STEP_S,
    MIN_HISTORY,
    StealDetector,
    compute_stolen_share,
)


def test_the_stolen_share_is_relative_to_the_cpu_time() -> None:
    assert compute_stolen_share({"steal_s": 0.5, "own_cpu_s": 10.0}) == 0.05
    assert compute_stolen_share({"samples_per_s": 3.0}) == 0.0


def test_a_high_share_is_a_disturbance_if_the_usual_share_is_low() -> None:
    steal_detector = StealDetector()
    assert not any(steal_detector.is_disturbed(0.001) for _ in range(2 * MIN_HISTORY))
    assert steal_detector.is_disturbed(2 * DISTURBING_SHARE)


def test_a_constant_share_is_no_disturbance_once_it_is_known() -> None:
    steal_detector = StealDetector()
    outcomes = [steal_detector.is_disturbed(2 * DISTURBING_SHARE) for _ in range(2 * MIN_HISTORY)]
    assert outcomes == [True] * MIN_HISTORY + [False] * MIN_HISTORY
    assert steal_detector.is_disturbed(4 * DISTURBING_SHARE)


def test_a_long_step_is_not_repeated() -> None:
    steal_detector = StealDetector()
    assert steal_detector.is_disturbed(2 * DISTURBING_SHARE, step_s=LONG_STEP_S / 2)
    assert not steal_detector.is_disturbed(2 * DISTURBING_SHARE, step_s=2 * LONG_STEP_S)
