"""Where a search begins: at what the store says of the same work here, and of other work like it."""

import functools
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from corewise.spec.record import Record
from corewise.spec.study import PRESETS
from corewise.store.store import Store
from corewise.tuner.known import known_settings
from corewise.tuner.question import Tunable, make_question
from corewise.tuner.space import Setting

BATCH = 8


@functools.cache
def tunable() -> Tunable:
    return Tunable.of(make_question("resnet18", batch=BATCH))


class Kept:
    """A store that records are put into, one after the other."""

    def __init__(self, folder: Path, tunable: Tunable) -> None:
        self.store, self.tunable = Store.open(folder / "store", create=True), tunable
        self._num = 0

    def add(self, rate: float, params: Mapping[str, Any], **changes: Any) -> None:
        """A record as `corewise run` leaves it on this kind of machine, with other values of some axes."""
        [usual] = self.tunable.plan(self.tunable.space.default, PRESETS["quick"]).trials
        self._num += 1
        values: dict[str, Any] = {
            "trial_id": f"{self._num:016x}",
            "study": "a-study",
            "status": "ok",
            "params": {**usual.params, **params},
            "metrics": {"samples_per_s": rate},
            "machine": {"host_class": self.tunable.planner.host.class_hash},
            "finished_at": f"2026-11-15T10:00:{self._num:02}.000Z",
        }
        self.store.append(Record(**{**values, **changes}))

    @property
    def known(self) -> list[Setting]:
        return known_settings(self.tunable, self.store)

    def near(self, **params: Any) -> Setting:
        return self.tunable.space.near({**self.tunable.space.base, **params})


@pytest.fixture
def kept(tmp_path: Path, need: Callable[[bool, str], None]) -> Kept:
    need(find_spec("torch") is not None, "PyTorch is not installed")
    return Kept(tmp_path, tunable())


RETAIN = {"allocator": "retain"}
PINNED = {"bind": "rank"}
KIN = {"workload": "resnet50"}


def test_an_empty_store_knows_nothing(kept: Kept) -> None:
    assert kept.known == []


def test_the_quickest_of_the_same_work_comes_before_what_won_for_other_work(kept: Kept) -> None:
    kept.add(100.0, {**KIN, **PINNED})
    kept.add(10.0, RETAIN)
    kept.add(9.0, {"wait_policy": "active"})
    assert kept.known == [kept.near(**RETAIN), kept.near(**PINNED)]


def test_the_default_itself_is_no_other_place_to_begin_at(kept: Kept) -> None:
    kept.add(10.0, {})
    kept.add(9.0, RETAIN)
    assert kept.known == []


def test_equal_settings_of_both_are_told_once(kept: Kept) -> None:
    kept.add(10.0, RETAIN)
    kept.add(10.0, {**KIN, **RETAIN})
    assert kept.known == [kept.near(**RETAIN)]


def test_several_processes_are_the_same_work_at_the_same_samples_in_flight(kept: Kept) -> None:
    kept.add(10.0, {**RETAIN, "processes": 2, "threads": 1, "batch": BATCH // 2, "batch_scope": "process"})
    [found] = kept.known
    assert kept.tunable.space.params(found)["allocator"] == "retain"


@pytest.mark.parametrize("other", [{"batch": 4 * BATCH}, {"args.image_size": 64}])
def test_another_batch_or_size_of_the_same_model_is_other_work_like_it(
    kept: Kept, other: Mapping[str, Any]
) -> None:
    kept.add(100.0, {**RETAIN, **other})
    kept.add(1.0, PINNED)
    assert kept.known == [kept.near(**PINNED), kept.near(**RETAIN)]


def test_of_several_like_it_the_latest_counts_with_its_quickest_record(kept: Kept) -> None:
    kept.add(100.0, {**KIN, **PINNED})
    kept.add(20.0, {"workload": "alexnet", **RETAIN})
    kept.add(10.0, {"workload": "alexnet", **PINNED})
    assert kept.known == [kept.near(**RETAIN)]


@pytest.mark.parametrize(
    "params",
    [
        pytest.param({"mode": "train"}, id="another mode"),
        pytest.param({"runtime": "numpy"}, id="another runtime"),
        pytest.param({"device": "cuda"}, id="another device"),
    ],
)
@pytest.mark.parametrize("work", [{}, KIN])
def test_what_was_measured_another_way_is_left_out(
    kept: Kept, work: Mapping[str, Any], params: Mapping[str, Any]
) -> None:
    kept.add(10.0, {**work, **RETAIN, **params})
    assert kept.known == []


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"machine": {"host_class": "another"}}, id="another kind of machine"),
        pytest.param({"machine": {}}, id="an unknown machine"),
        pytest.param({"status": "failed", "metrics": {}}, id="failed"),
    ],
)
@pytest.mark.parametrize("work", [{}, KIN])
def test_what_failed_or_ran_elsewhere_is_left_out(
    kept: Kept, work: Mapping[str, Any], changes: dict[str, Any]
) -> None:
    kept.add(10.0, {**work, **RETAIN}, **changes)
    assert kept.known == []


@pytest.mark.parametrize(
    "workload",
    [
        pytest.param("/somewhere/own.py:make", id="a custom one"),
        pytest.param("of_a_package_that_has_gone", id="an unknown one"),
        pytest.param("transformer", id="one of words"),
        pytest.param("gemm", id="a kernel"),
    ],
)
def test_work_that_is_not_known_to_be_like_it_is_left_out(kept: Kept, workload: str) -> None:
    kept.add(10.0, {"workload": workload, **RETAIN})
    assert kept.known == []


def test_a_choice_that_may_not_be_tried_is_left_as_it_comes(kept: Kept) -> None:
    kept.add(10.0, {**RETAIN, "dtype": "bfloat16"})
    [found] = kept.known
    assert kept.tunable.space.params(found).get("dtype", "float32") == "float32"
    assert found == kept.near(**RETAIN)
