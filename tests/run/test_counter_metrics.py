import pytest

from corewise.measured.parameters import TrialParameters
from corewise.measured.trial import Protocol, RankPlacement, RankResult, Trial
from corewise.run.counter_metrics import compute_perf_metrics, derive_metrics
from corewise.run.run_collector import collect_run


def build_trial(num_ranks: int = 1, pixels: float = 0.0) -> Trial:
    params = TrialParameters.from_mapping({"workload": "resnet18", "mode": "train", "processes": num_ranks})
    ranks = tuple(RankPlacement((rank,)) for rank in range(num_ranks))
    return Trial("id", params, Protocol(), ranks, {}, ("python",), work={"pixels_per_sample": pixels})


def build_result(rank: int = 0, **metrics: float) -> RankResult:
    counted = {"num_steps": 10.0, "window_s": 1.0, "window_samples": 40.0, **metrics}
    return RankResult("ok", rank, samples_s=(0.1,) * 10, samples_per_step=4.0, metrics=counted)


COUNTS = {"perf_instructions": 8e9, "perf_cycles": 4e9, "perf_llc_misses": 2e6}


def test_counts_become_metrics_per_sample() -> None:
    metrics = compute_perf_metrics(build_trial(), [build_result(**COUNTS)])
    assert metrics == {
        "perf_instructions_per_sample": 2e8,
        "perf_cycles_per_sample": 1e8,
        "perf_ipc": 2.0,
        "perf_mpki": 0.25,
        "perf_llc_misses_per_sample": 5e4,
    }


def test_images_have_instructions_per_megapixel() -> None:
    metrics = compute_perf_metrics(build_trial(pixels=50_000), [build_result(**COUNTS)])
    assert metrics["perf_instructions_per_megapixel"] == pytest.approx(2e8 / 0.05)


def test_the_ranks_of_a_trial_add_up() -> None:
    one, two = build_result(0, **COUNTS), build_result(1, **{**COUNTS, "perf_instructions": 16e9})
    metrics = compute_perf_metrics(build_trial(2), [one, two])
    assert metrics["perf_instructions_per_sample"] == 24e9 / 80
    assert metrics["perf_ipc"] == 3.0
    assert collect_run(build_trial(2), [one, two]).metrics["perf_instructions"] == 24e9


def test_a_rank_without_counts_leaves_the_trial_without_them() -> None:
    assert compute_perf_metrics(build_trial(2), [build_result(0, **COUNTS), build_result(1)]) == {}


def test_cachegrind_has_no_cycles() -> None:
    metrics = derive_metrics("cachegrind", {"instructions": 1e6, "llc_misses": 50.0}, 2.0, 0.0)
    assert metrics == {
        "cachegrind_instructions_per_sample": 5e5,
        "cachegrind_mpki": 0.05,
        "cachegrind_llc_misses_per_sample": 25.0,
    }


def test_nothing_is_derived_without_instructions() -> None:
    assert derive_metrics("perf", {"instructions": 0.0, "cycles": 5.0}, 1.0, 0.0) == {}
