"""Starting points of a search from stored records of the same and of similar work."""

import functools
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from corewise.store.store import Store
from corewise.study.record import Record
from corewise.study.study import PRESETS
from corewise.tuning.question import Tunable, build_question
from corewise.tuning.search.prior_results import find_known_settings
from corewise.tuning.search.setting_space import Setting

BATCH = 8


@functools.cache
def build_tunable() -> Tunable:
    return Tunable.from_question(build_question("resnet18", batch=BATCH))


class FilledStore:
    """A store to which tests add records."""

    def __init__(self, folder: Path, tunable: Tunable) -> None:
        self.store, self.tunable = Store.open(folder / "store", create=True), tunable
        self._num = 0

    def add(self, rate: float, params: Mapping[str, Any], **changes: Any) -> None:
        """Add a record of this class of machine, with other values of some axes."""
        [usual] = self.tunable.plan(self.tunable.space.default, PRESETS["quick"]).trials
        self._num += 1
        values: dict[str, Any] = {
            "trial_id": f"{self._num:016x}",
            "study": "a-study",
            "status": "ok",
            "params": {**usual.params.to_mapping(), **params},
            "metrics": {"samples_per_s": rate},
            "machine": {"host_class": self.tunable.planner.host.class_hash},
            "finished_at": f"2026-11-15T10:00:{self._num:02}.000Z",
        }
        self.store.append(Record(**{**values, **changes}))

    @property
    def known(self) -> list[Setting]:
        return find_known_settings(self.tunable, self.store.read_records().records)

    def find_nearest(self, **params: Any) -> Setting:
        return self.tunable.space.find_nearest({**self.tunable.space.base, **params})


@pytest.fixture
def filled_store(tmp_path: Path, need: Callable[[bool, str], None]) -> FilledStore:
    need(find_spec("torch") is not None, "PyTorch is not installed")
    return FilledStore(tmp_path, build_tunable())


RETAIN = {"allocator": "retain"}
PINNED = {"bind": "rank"}
SIMILAR = {"workload": "resnet50"}


def test_an_empty_store_knows_nothing(filled_store: FilledStore) -> None:
    assert filled_store.known == []


def test_the_fastest_setting_of_the_same_work_precedes_winners_of_similar_work(filled_store: FilledStore) -> None:
    filled_store.add(100.0, {**SIMILAR, **PINNED})
    filled_store.add(10.0, RETAIN)
    filled_store.add(9.0, {"wait_policy": "active"})
    assert filled_store.known == [filled_store.find_nearest(**RETAIN), filled_store.find_nearest(**PINNED)]


def test_the_default_is_not_listed_as_a_start(filled_store: FilledStore) -> None:
    filled_store.add(10.0, {})
    filled_store.add(9.0, RETAIN)
    assert filled_store.known == []


def test_equal_settings_of_both_are_listed_once(filled_store: FilledStore) -> None:
    filled_store.add(10.0, RETAIN)
    filled_store.add(10.0, {**SIMILAR, **RETAIN})
    assert filled_store.known == [filled_store.find_nearest(**RETAIN)]


def test_several_processes_are_the_same_work_at_the_same_samples_in_flight(filled_store: FilledStore) -> None:
    filled_store.add(10.0, {**RETAIN, "processes": 2, "threads": 1, "batch": BATCH // 2, "batch_scope": "process"})
    [setting] = filled_store.known
    assert filled_store.tunable.space.build_params(setting)["allocator"] == "retain"


@pytest.mark.parametrize("other", [{"batch": 4 * BATCH}, {"args.image_size": 64}])
def test_another_batch_or_size_of_the_same_model_is_similar_work(
    filled_store: FilledStore, other: Mapping[str, Any]
) -> None:
    filled_store.add(100.0, {**RETAIN, **other})
    filled_store.add(1.0, PINNED)
    assert filled_store.known == [filled_store.find_nearest(**PINNED), filled_store.find_nearest(**RETAIN)]


def test_the_fastest_record_of_the_latest_similar_work_counts(filled_store: FilledStore) -> None:
    filled_store.add(100.0, {**SIMILAR, **PINNED})
    filled_store.add(20.0, {"workload": "alexnet", **RETAIN})
    filled_store.add(10.0, {"workload": "alexnet", **PINNED})
    assert filled_store.known == [filled_store.find_nearest(**RETAIN)]


@pytest.mark.parametrize(
    "params",
    [
        pytest.param({"mode": "train"}, id="another mode"),
        pytest.param({"runtime": "numpy"}, id="another runtime"),
        pytest.param({"device": "cuda"}, id="another device"),
    ],
)
@pytest.mark.parametrize("work", [{}, SIMILAR])
def test_records_of_another_mode_or_runtime_are_ignored(
    filled_store: FilledStore, work: Mapping[str, Any], params: Mapping[str, Any]
) -> None:
    filled_store.add(10.0, {**work, **RETAIN, **params})
    assert filled_store.known == []


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"machine": {"host_class": "another"}}, id="another class of machine"),
        pytest.param({"machine": {}}, id="an unknown machine"),
        pytest.param({"status": "failed", "metrics": {}}, id="failed"),
    ],
)
@pytest.mark.parametrize("work", [{}, SIMILAR])
def test_records_that_failed_or_ran_elsewhere_are_ignored(
    filled_store: FilledStore, work: Mapping[str, Any], changes: dict[str, Any]
) -> None:
    filled_store.add(10.0, {**work, **RETAIN}, **changes)
    assert filled_store.known == []


@pytest.mark.parametrize(
    "workload",
    [
        pytest.param("/somewhere/own.py:make", id="a custom one"),
        pytest.param("of_a_package_that_has_gone", id="an unknown one"),
        pytest.param("transformer", id="a language model"),
        pytest.param("gemm", id="a kernel"),
    ],
)
def test_work_that_is_not_similar_is_ignored(filled_store: FilledStore, workload: str) -> None:
    filled_store.add(10.0, {"workload": workload, **RETAIN})
    assert filled_store.known == []


def test_a_choice_that_is_not_allowed_keeps_its_default(filled_store: FilledStore) -> None:
    filled_store.add(10.0, {**RETAIN, "dtype": "bfloat16"})
    [setting] = filled_store.known
    assert filled_store.tunable.space.build_params(setting).get("dtype", "float32") == "float32"
    assert setting == filled_store.find_nearest(**RETAIN)
