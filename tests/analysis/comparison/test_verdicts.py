"""Verdicts, their correction, and what is said where the data cannot tell."""

import math
from pathlib import Path

import numpy as np
import pytest
from tests.analysis.comparison.sample_sides import NO_LOOKS, disturbed, over_threads, processes, store_of, trial

from corewise.analysis.comparison.comparison_model import StoreComparison
from corewise.analysis.comparison.selection import parse_by
from corewise.analysis.comparison.store_comparison import compare_stores
from corewise.analysis.comparison.verdicts import PER_SAMPLE
from corewise.study.record import Record


def compared(tmp_path: Path, a: list[Record], b: list[Record], **options: object) -> StoreComparison:
    paths = [store_of(tmp_path / name, *records) for name, records in (("a", a), ("b", b))]
    return compare_stores(*paths, **options)  # type: ignore[arg-type]


def test_faster_slower_and_the_same_are_distinguished_worst_first(tmp_path):
    a = over_threads("a", {1: 1.0, 2: 0.5, 4: 0.3, 8: 0.2})
    b = over_threads("b", {1: 1.1, 2: 0.6, 4: 0.3, 8: 0.1})
    found = compared(tmp_path, a, b)
    verdicts = [(trial.params["threads"], trial.verdict) for trial in found.trials]
    assert verdicts == [(2, "slower"), (1, "slower"), (8, "faster"), (4, "same")]
    for pair in found.trials:
        assert pair.low < pair.ratio < pair.high
        assert -1 <= pair.effect_size <= 1
        assert pair.adjusted_p_value >= pair.p_value
    assert found.trials[0].ratio == pytest.approx(1.2, rel=0.01)
    assert not found.trials[-1].undecided


def test_the_sentence_counts_the_verdicts_and_gives_the_mean_ratio(tmp_path):
    a = over_threads("a", {1: 1.0, 2: 0.5, 4: 0.3})
    b = over_threads("b", {1: 1.2, 2: 0.4, 4: 0.3})
    summary = compared(tmp_path, a, b).summary
    assert (summary.num_slower, summary.num_faster, summary.num_same, summary.num_undecided) == (1, 1, 1, 0)
    assert summary.sentence.startswith("B is faster in 1 of 3 trials and slower in 1; over all, B takes 0.98")
    assert summary.ratio == pytest.approx((1.2 * 0.8) ** (1 / 3), rel=0.01)
    assert summary.low < summary.ratio < summary.high


def test_one_process_cannot_tell(tmp_path):
    found = compared(tmp_path, [trial("a1", [0.5])], [trial("b1", [5.0])])
    [pair] = found.trials
    assert (pair.verdict, pair.undecided, pair.p_value, pair.low) == ("same", True, None, None)
    assert pair.ratio == pytest.approx(10)
    assert pair.reason == "the data cannot tell: 1 process of A and 1 of B; at least 2 on each side are needed"
    assert found.summary.num_undecided == 1
    assert found.summary.num_same == 0
    assert found.summary.sentence == (
        "The data cannot tell whether A and B differ (1 trial); B takes 10.000 times as long as A."
    )
    assert "fewer than 2 processes" in found.summary.notes[-1]


def test_a_record_without_any_time_cannot_tell(tmp_path):
    found = compared(tmp_path, [trial("a1", [])], [trial("b1")])
    [pair] = found.trials
    assert (pair.verdict, pair.undecided, pair.ratio) == ("same", True, None)
    assert found.summary.ratio is None


def test_a_wide_interval_cannot_tell(tmp_path):
    rng = np.random.default_rng(1)
    noisy = [np.exp(rng.normal(0, 0.4, 12)).tolist() for _ in range(2)]
    found = compared(tmp_path, [trial("a1", noisy[0])], [trial("b1", noisy[1])])
    [pair] = found.trials
    assert (pair.verdict, pair.undecided) == ("same", True)
    assert "the data cannot tell" in pair.reason
    assert "run more processes" in pair.reason


def test_runs_that_failed_or_have_no_sane_time_do_not_count(tmp_path):
    good = trial("a1")
    bad = [{"status": "failed", "metrics": {"step_s": 9.0}}, {"status": "ok", "metrics": {"step_s": 0.0}}]
    bad += [{"status": "ok", "metrics": {"step_s": None}}, {"status": "ok"}]
    a = trial("a1", runs=(*good.runs, *bad))
    assert compared(tmp_path, [a], [trial("b1")]).trials[0].a_num_processes == 12


def test_few_processes_among_many_trials_are_reported_with_their_limits(tmp_path):
    sides = []
    for name in "ab":
        steps = {n: processes(0.5, num=5, spread=0.05, seed=1000 * ord(name) + n) for n in range(200)}
        sides.append([trial(f"{name}{n:03d}", s, params={"batch": 1 + n}) for n, s in steps.items()])
    found = compared(tmp_path, *sides)
    note = "5 processes a side cannot show a difference among 200 comparisons by rank; 8 can."
    assert found.summary.notes[0].startswith(note)
    assert {pair.method for pair in found.trials} == {"Welch"}


def test_a_large_difference_is_found_among_many_trials_even_with_few_processes(tmp_path):
    a = [trial(f"a{n:03d}", processes(0.5, 5, 0.01, n), params={"batch": 1 + n}) for n in range(100)]
    b = [trial(f"b{n:03d}", processes(0.5, 5, 0.01, n + 999), params={"batch": 1 + n}) for n in range(99)]
    b.append(trial("b099", processes(0.75, 5, 0.01, 5), params={"batch": 100}))
    found = compared(tmp_path, a, b)
    assert [(pair.b_trial_id, pair.verdict) for pair in found.trials if pair.verdict != "same"] == [("b099", "slower")]


def test_equal_trials_are_seldom_called_different_and_slowed_ones_are_found(tmp_path):
    rng = np.random.default_rng(11)

    def steps(factor: float) -> list[float]:
        drift = np.exp(rng.normal(0, 0.005))
        bursts = np.where(rng.random(18) < 0.2, rng.exponential(0.05, 18), 0.0)
        return (0.1 * factor * drift * (1 + bursts + np.abs(rng.normal(0, 0.005, 18)))).tolist()

    a = [trial(f"a{n:03d}", steps(1.0), params={"batch": 1 + n}) for n in range(100)]
    b = [trial(f"b{n:03d}", steps(1.05 if n % 2 else 1.0), params={"batch": 1 + n}) for n in range(100)]
    found = {pair.params["batch"] - 1: pair.verdict for pair in compared(tmp_path, a, b).trials}
    assert sum(found[n] != "same" for n in range(0, 100, 2)) <= 2
    assert sum(found[n] == "slower" for n in range(1, 100, 2)) >= 45


def test_many_comparisons_require_more_evidence_than_one(tmp_path):
    a, b = processes(0.5, 12, 0.03, 3), processes(0.517, 12, 0.03, 4)
    alone = compared(tmp_path / "one", [trial("a", a)], [trial("b", b)]).trials[0]
    equal = [trial(f"{n:03d}", processes(0.5, 12, 0.02, n), params={"batch": n}) for n in range(1, 41)]
    others = [trial(f"{n:03d}", processes(0.5, 12, 0.02, n + 77), params={"batch": n}) for n in range(1, 41)]
    among = compared(tmp_path / "many", [trial("a", a), *equal], [trial("b", b), *others])
    same_pair = next(pair for pair in among.trials if pair.a_trial_id == "a")
    assert alone.verdict == "slower"
    assert same_pair.p_value == alone.p_value
    assert same_pair.verdict == "same"


def test_optional_stopping_requires_more_evidence(tmp_path):
    looked = {"min_runs": 5, "max_runs": 12}
    steps = processes(0.5, 12, 0.02, 1), processes(0.515, 12, 0.02, 2)
    plain = compared(tmp_path / "plain", [trial("a", steps[0])], [trial("b", steps[1])]).trials[0]
    mixed = compared(
        tmp_path / "mixed", [trial("a", steps[0], protocol=looked)], [trial("b", steps[1], protocol=NO_LOOKS)]
    ).trials[0]
    assert mixed.p_value > plain.p_value


def together(trial_id: str, step_s: float, seed: int, minute: int = 0, **changes: object) -> Record:
    start, end = f"2026-11-15T10:{minute:02d}:00Z", f"2026-11-15T10:{minute + 9:02d}:00Z"
    steps = processes(step_s, 12, 0.002, seed)
    return trial(trial_id, steps, started_at=start, finished_at=end, **changes)


def test_trials_interleaved_need_no_margin(tmp_path):
    records = [
        together("a", 0.5, 1, params={"math": "vendor"}),
        together("b", 0.506, 2, minute=1, params={"math": "vanilla"}),
    ]
    path = store_of(tmp_path / "store", *records)
    found = compare_stores(path, path, by=parse_by(["math=vendor,vanilla"]))
    assert [(p.verdict, p.interleaved, p.method) for p in found.trials] == [("slower", True, "Welch")]
    assert "interleaved in one run" in found.summary.notes[0]


@pytest.mark.parametrize(
    "apart",
    [{"minute": 20}, {"study": "another"}, {"machine": {"hostname": "node2"}}],
    ids=["later", "another study", "another host"],
)
def test_trials_apart_in_time_study_or_host_keep_the_margin(tmp_path, apart):
    records = [
        together("a", 0.5, 1, params={"math": "vendor"}),
        together("b", 0.506, 2, params={"math": "vanilla"}, **apart),
    ]
    path = store_of(tmp_path / "store", *records)
    [pair] = compare_stores(path, path, by=parse_by(["math=vendor,vanilla"])).trials
    assert (pair.verdict, pair.interleaved) == ("same", False)
    assert "within the ±2%" in pair.reason


def test_steps_of_different_size_are_compared_per_sample(tmp_path):
    def batched(trial_id: str, batch: int, step_s: float) -> Record:
        runs = tuple({"status": "ok", "metrics": {"step_s": s, "samples_per_s": batch / s}} for s in processes(step_s))
        metrics = {"samples_per_step": float(batch)}
        return trial(trial_id, params={"batch": batch}, runs=runs, metrics=metrics)

    path = store_of(tmp_path / "store", batched("a", 16, 0.5), batched("b", 64, 1.0))
    found = compare_stores(path, path, by=parse_by(["batch=16,64"]))
    assert found.rule.metric == PER_SAMPLE
    assert found.trials[0].ratio == pytest.approx(0.5, rel=0.02)
    assert "times as long per sample as A" in found.summary.sentence


def test_the_mean_of_many_ratios_has_the_same_interval_every_time(tmp_path):
    a = over_threads("a", {n: 1.0 / n for n in range(1, 9)})
    b = over_threads("b", {n: 1.05 / n for n in range(1, 9)})
    first = compared(tmp_path / "1", a, b).summary
    second = compared(tmp_path / "2", a, b).summary
    assert (first.ratio, first.low, first.high) == (second.ratio, second.low, second.high)
    assert first.low > 1
    assert math.log(first.high / first.low) < 0.02


def test_the_mean_of_one_pair_is_as_unsure_as_its_processes(tmp_path):
    found = compared(tmp_path, [trial("a")], [trial("b", 0.55)])
    pair, summary = found.trials[0], found.summary
    assert (summary.low, summary.high) == (pair.low, pair.high)


def test_a_threshold_decides_only_what_is_a_regression(tmp_path):
    a, b = over_threads("a", {1: 1.0, 2: 0.5}), over_threads("b", {1: 1.04, 2: 0.6})
    strict = compared(tmp_path / "1", a, b, threshold=0.03)
    mild = compared(tmp_path / "2", a, b, threshold=0.05)
    assert [pair.verdict for pair in strict.trials] == [pair.verdict for pair in mild.trials] == ["slower"] * 2
    assert (strict.summary.num_regressions, mild.summary.num_regressions) == (2, 1)


def test_times_that_are_all_over_the_place_are_reported_in_few_letters(tmp_path):
    found = compared(tmp_path, [trial("a1", [1e-3, 1e3])], [trial("b1", [1e-6, 1e6])])
    [pair] = found.trials
    assert (pair.verdict, pair.undecided) == ("same", True)
    assert len(pair.reason) < 100
    assert len(found.summary.sentence) < 200
    assert math.isfinite(pair.high)


def test_no_trial_is_counted_twice_in_the_sentence(tmp_path):
    a = [trial("a1", [0.5]), *over_threads("a", {2: 0.5})]
    b = [trial("b1", [0.5]), *over_threads("b", {2: 0.5})]
    sentence = compared(tmp_path, a, b).summary.sentence
    assert sentence.startswith(
        "No difference between A and B is shown in 1 of 2 trials; in 1 the data cannot tell; over all, "
    )


def test_the_times_shown_are_those_whose_ratio_is_shown(tmp_path):
    a, b = [40e-6, 45e-6, 50e-6], [30e-6, 32e-6, 9e-3]
    [pair] = compared(tmp_path, [trial("a", a)], [trial("b", b)]).trials
    assert pair.method == "Welch"
    assert pair.b_time_s / pair.a_time_s == pytest.approx(pair.ratio)


def test_disturbed_runs_count_and_are_named_first(tmp_path):
    a = over_threads("a", {1: 0.5, 2: 0.5})
    b = [disturbed("b1", 0.8, num=3, params={"threads": 1}), *over_threads("b", {2: 0.5})]
    found = compared(tmp_path, a, b)
    verdicts = [(p.verdict, p.regression, p.a_num_disturbed, p.b_num_disturbed, p.in_doubt) for p in found.trials]
    assert verdicts == [("slower", True, 0, 3, True), ("same", False, 0, 0, False)]
    assert found.summary.disturbed[0] == "1 of 2 trials of B had disturbed runs."
    doubt = "1 trial where B is slower may only reflect disturbances of B: "
    assert found.summary.disturbed[1].startswith(doubt)
    assert (found.summary.num_disturbed_b, found.summary.num_in_doubt) == (1, 1)


def test_a_disturbed_side_that_is_faster_all_the_same_is_not_in_doubt(tmp_path):
    found = compared(tmp_path, [disturbed("a", 0.5, num=12)], [trial("b", 0.8)])
    [pair] = found.trials
    assert (pair.verdict, pair.a_num_disturbed, pair.in_doubt) == ("slower", 12, False)
    assert found.summary.disturbed == ["1 of 1 trial of A had disturbed runs."]


@pytest.mark.parametrize(("num_quiet", "used"), [(3, 3), (2, 12)])
def test_disturbed_runs_can_be_left_out_where_enough_others_remain(tmp_path, num_quiet, used):
    b = disturbed("b", 0.8, num=12 - num_quiet, num_quiet=num_quiet)
    [pair] = compared(tmp_path, [trial("a", 0.5)], [b], ignore_disturbed=True).trials
    assert (pair.verdict, pair.regression, pair.b_num_processes) == ("same", False, used)
    assert (pair.undecided, pair.in_doubt) == ((True, True) if used == 12 else (False, False))
    assert ("2 of 12 processes of B" in pair.reason) == (used == 12)


def test_a_slowdown_of_the_undisturbed_runs_stands_when_the_others_are_left_out(tmp_path):
    slow = disturbed("b", 0.9, num=4)
    b = trial("b", [], runs=(*slow.runs, *trial("x", 0.6).runs))
    found = compared(tmp_path, [trial("a", 0.5)], [b], ignore_disturbed=True)
    [pair] = found.trials
    assert (pair.verdict, pair.regression, pair.in_doubt, pair.b_num_processes) == ("slower", True, False, 12)
    assert found.summary.disturbed[-1] == "Disturbed runs are left out."


def test_equal_times_of_disturbed_runs_prove_nothing_when_these_are_left_out(tmp_path):
    a, b = [disturbed("a", 0.5, num=12)], [trial("b", 0.5)]
    assert not compared(tmp_path / "1", a, b).trials[0].undecided
    assert compared(tmp_path / "2", a, b, ignore_disturbed=True).trials[0].undecided
