"""Who is best, who may equal it, how well more cores pay: as one at a time, and as in a terminal."""

import math

import numpy as np
import pytest
from tests.report.sample_trials import REAL_STORE, around, group_of, scaling, trial

from corewise.analysis.columns import get_run_rates
from corewise.analysis.efficiency import compute_efficiencies
from corewise.analysis.groups import RecordSource, group_records
from corewise.analysis.ranking import rank_trials
from corewise.analysis.ratios import estimate_ratio, is_significant
from corewise.analysis.result_tables import build_result_tables
from corewise.stats.scaling import compute_efficiency_curve
from corewise.store.brief_records import extract_brief
from corewise.store.store import Store


def test_the_fastest_is_best_and_ties_are_marked() -> None:
    group = group_of(*scaling()[:4], trial(around(50.2, 0.1), params={"threads": 16}))
    standing = rank_trials(group)
    assert [p["threads"] for p, b in zip(group.points, standing.is_best, strict=True) if b] == [16]
    assert [p["threads"] for p, b in zip(group.points, standing.may_equal_best, strict=True) if b] == [8]


def test_another_size_of_images_is_another_task() -> None:
    group = group_of(
        *(trial(r, params={"args.image_size": s, "threads": t}) for s, t, r in [
            (64, 1, 90.0), (64, 2, 170.0), (224, 1, 10.0), (224, 2, 19.0),
        ])
    )  # fmt: skip
    standing = rank_trials(group)
    assert sorted(group.points[i]["args.image_size"] for i in standing.best.values()) == [64, 224]
    assert standing.is_best.sum() == 2


def test_trials_without_a_number_are_never_best() -> None:
    group = group_of(trial([], params={"threads": 1}), trial(10.0, params={"threads": 2}))
    standing = rank_trials(group)
    assert [group.points[i]["threads"] for i in standing.best.values()] == [2]
    assert rank_trials(group_of(trial([]), trial([], params={"threads": 2}))).best == {}


def test_report_and_terminal_mark_the_same_trials_and_show_the_same_efficiency() -> None:
    records = Store.open(REAL_STORE, create=False).read_records().records
    shown = {row.trial_id: row for table in build_result_tables(records) for row in table.rows}
    num = 0
    for group in group_records([RecordSource(label="store", records=[extract_brief(record) for record in records])]):
        standing, efficiency = rank_trials(group), compute_efficiencies(group)
        for i, record in enumerate(group.records):
            row = shown[record.trial_id]
            num += 1
            assert (bool(standing.is_best[i]), bool(standing.may_equal_best[i])) == (row.is_best, row.may_equal_best)
            assert group.rate[i] == row.samples_per_s
            if row.efficiency is None:
                assert math.isnan(efficiency.value[i])
            else:
                assert efficiency.value[i] == pytest.approx(row.efficiency)
    assert num == len(shown) == 30


def test_an_efficiency_has_the_interval_of_one_curve() -> None:
    group = group_of(*scaling())
    found = compute_efficiencies(group, ("threads",))
    rates = {p["threads"]: get_run_rates(r) for p, r in zip(group.points, group.records, strict=True)}
    for point in compute_efficiency_curve(rates):
        [i] = [i for i, p in enumerate(group.points) if p["threads"] == point.width]
        assert point.efficiency is not None
        assert found.value[i] == pytest.approx(point.efficiency.value, rel=1e-3)
        assert found.low[i] == pytest.approx(point.efficiency.low, rel=1e-3)
        assert found.high[i] == pytest.approx(point.efficiency.high, rel=1e-3)


def test_the_base_is_the_narrowest_trial_with_all_else_equal() -> None:
    group = group_of(
        *(trial(t * b, params={"threads": t, "batch": b}) for t in (2, 4) for b in (8, 32)),
        trial(50.0, params={"threads": 8, "batch": 64}),
    )
    found = compute_efficiencies(group)
    for i, point in enumerate(group.points):
        if point["batch"] == 64:
            assert found.base[i] == -1
            assert math.isnan(found.value[i])
        else:
            base = group.points[int(found.base[i])]
            assert (base["threads"], base["batch"]) == (2, point["batch"])
            assert found.value[i] == pytest.approx(1.0)


def test_of_two_trials_of_the_least_width_one_is_base_and_the_other_has_no_efficiency() -> None:
    group = group_of(
        *(trial(r, params={"processes": p, "threads": t}) for p, t, r in [(1, 2, 9.0), (2, 1, 8.0), (2, 2, 15.0)])
    )
    found = compute_efficiencies(group)
    shapes = [(p["processes"], p["threads"]) for p in group.points]
    assert math.isnan(found.value[shapes.index((2, 1))])
    assert found.value[shapes.index((2, 2))] == pytest.approx(15 / 9 / 2)


def test_the_terminal_shows_the_efficiencies_of_the_group() -> None:
    records = scaling()
    group = group_of(*records)
    [table] = build_result_tables(records)
    shown = {row.trial_id: row.efficiency for row in table.rows}
    inside = compute_efficiencies(group).value
    assert [shown[r.trial_id] for r in group.records] == pytest.approx(inside.tolist())


def test_a_ratio_holds_the_figures_shown_and_says_when_nothing_is_shown() -> None:
    group = group_of(trial(around(20.0, 0.3)), trial(around(20.5, 0.3), params={"threads": 8}))
    ratio = estimate_ratio(group, 1, 0)
    assert ratio.value == group.rate[1] / group.rate[0]
    assert ratio.low is not None
    assert ratio.high is not None
    assert ratio.low <= ratio.value <= ratio.high
    assert not is_significant(ratio)
    single = group_of(trial([20.0]), trial([30.0], params={"threads": 8}))
    assert estimate_ratio(single, 1, 0).low is None
    assert not is_significant(estimate_ratio(single, 1, 0))


def test_half_a_group_without_runs_does_not_spoil_the_rest() -> None:
    group = group_of(*scaling(), trial([], params={"threads": 32}))
    found = compute_efficiencies(group)
    assert np.isnan(found.value).sum() == 1
