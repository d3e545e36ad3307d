"""Convolutions on jax and tensorflow: right numbers in every direction, and what they lack."""

import importlib
from collections.abc import Callable
from typing import Any

import pytest
from tests.runtimes.xla_frameworks import FRAMEWORKS, Need, make_arrays, need_framework

from corewise.runtimes.arrays_convolution import Dialect, prepare_arrays_convolution
from corewise.runtimes.base import Infeasible, RankContext
from corewise.workloads.primitives.convolution import CONVOLUTION

Job = Callable[..., Any]


@pytest.fixture(params=FRAMEWORKS)
def framework(request: pytest.FixtureRequest, need: Need) -> str:
    need_framework(need, request.param)
    return str(request.param)


@pytest.fixture
def job(framework: str, params: Callable[..., dict[str, Any]], alone: RankContext) -> Job:
    operator = importlib.import_module(f"corewise.runtimes.{framework}.convolution").operator

    def made(**values: Any) -> Any:
        asked = params(workload="convolution", **{"problem": "mb2ic4ih9iw7oc6kh3kw2sh2ph1", **values})
        dialect = Dialect(framework == "tensorflow", operator, memory_factor=1.0)
        return prepare_arrays_convolution(make_arrays(framework), dialect, asked, alone, dict)

    return made


@pytest.mark.parametrize("direction", ["FWD_B", "BWD_D", "BWD_WB"])
def test_every_direction_gives_the_right_numbers(job: Job, direction: str) -> None:
    made = job(direction=direction)
    check = made.check()
    assert check.passed
    assert 0 < check.error < 1e-5
    assert made.facts()["direction"] == direction


def test_padding_may_be_larger_behind_than_before(job: Job) -> None:
    assert job(problem="mb1ic2ih6oc3oh6kh2", direction="FWD_I").check().passed


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"dtype": "int8"}, "no convolution of whole numbers"),
        ({"benchdnn": "benchdnn"}, "beside torch's"),
        ({"memory_format": "channels_last"}, "one operator"),
        ({"problem": "mb4000000ic512ih200oc512kh1"}, "largest minibatch that fits is [0-9]+: set args.mb to"),
    ],
)
def test_what_does_not_exist_is_refused(job: Job, values: dict[str, Any], words: str) -> None:
    with pytest.raises(Infeasible, match=words):
        job(**values)


def test_what_the_framework_itself_refuses_is_told_in_its_words(job: Job, framework: str) -> None:
    if framework == "jax":
        assert job(problem="mb1ic2ih6oc3kh2dh1", direction="BWD_D").check().passed
        return
    with pytest.raises(Infeasible, match="dilation"):
        job(problem="mb1ic2ih6oc3kh2dh1", direction="BWD_D")


def test_the_builders_are_there(framework: str) -> None:
    module, _, function = CONVOLUTION.builders[framework].partition(":")
    assert callable(getattr(importlib.import_module(module), function))
