"""The stores that `benchmarks/at_scale.py` measures on are such as Corewise writes."""

import sys
from collections import Counter
from pathlib import Path

import pytest

from corewise.store.brief_records import extract_brief
from corewise.store.store import Store

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from scale_stores import REAL_STORE, StoreRecipe, make_store


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scale")
    make_store(folder / "a", StoreRecipe(num_records=400, num_samples=100, seed=1))
    make_store(folder / "b", StoreRecipe(400, 100, seed=2, torch_version="9.9", slowed_share=0.05, slowed_by=0.5))
    return [Store.open(folder / name, create=False).read_records() for name in "ab"]


def test_every_point_is_a_trial_of_its_own_and_most_are_ok(made):
    for result in made:
        assert (len(result.records), result.damage, result.duplicates) == (400, (), ())
        counts = Counter(record.status for record in result.records)
        assert counts["ok"] > 370
        assert min(counts["failed"], counts["skipped"]) > 0
        assert len({record.study for record in result.records}) == 4
        assert {len(record.samples_s) for record in result.records if record.status == "ok"} == {100}


def test_a_record_has_the_keys_of_a_real_one(made):
    real = Store.open(REAL_STORE, create=False).read_records().records[0]
    some = next(record for record in made[0].records if record.status == "ok")
    assert {*some.metrics} == {*real.metrics}
    assert {*some.params} == {*real.params}
    assert {*some.runs[0]} == {*real.runs[0]}
    assert {*some.runs[0]["ranks"][0]} == {*real.runs[0]["ranks"][0]}


def test_the_second_store_has_the_same_points_and_some_slower(made):
    a, b = ({str(dict(r.params)): r for r in map(extract_brief, result.records)} for result in made)
    assert a.keys() == b.keys()
    ratios = [b[point].metrics["step_s"] / a[point].metrics["step_s"] for point in a if a[point].status == "ok"]
    assert 0.03 < sum(ratio > 1.3 for ratio in ratios) / len(ratios) < 0.07
    assert all(0.9 < ratio < 1.7 for ratio in ratios)
