"""Convolutions on jax and tensorflow: correct results in every direction, and refusals."""

import importlib
from collections.abc import Callable
from typing import Any

import pytest
from tests.measured.runtimes.xla_frameworks import FRAMEWORKS, Need, make_arrays, need_framework

from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.arrays.convolution import ConvolutionDialect, prepare_arrays_convolution
from corewise.measured.runtimes.base import Infeasible, RankContext
from corewise.measured.workloads.primitives.convolution import CONVOLUTION

Job = Callable[..., Any]


@pytest.fixture(params=FRAMEWORKS)
def framework(request: pytest.FixtureRequest, need: Need) -> str:
    need_framework(need, request.param)
    return str(request.param)


@pytest.fixture
def job(framework: str, params: Callable[..., TrialParameters], alone: RankContext) -> Job:
    module = importlib.import_module(f"corewise.measured.runtimes.{framework}.primitives.convolution")

    def prepare(**values: Any) -> Any:
        trial = params(workload="convolution", **{"problem": "mb2ic4ih9iw7oc6kh3kw2sh2ph1", **values})
        dialect = ConvolutionDialect(framework == "tensorflow", module.build_operator, memory_factor=1.0)
        return prepare_arrays_convolution(make_arrays(framework), dialect, trial, alone, dict)

    return prepare


@pytest.mark.parametrize("direction", ["FWD_B", "BWD_D", "BWD_WB"])
def test_every_direction_gives_the_right_numbers(job: Job, direction: str) -> None:
    made = job(direction=direction)
    check = made.check()
    assert check.passed
    assert 0 < check.error < 1e-5
    assert made.read_facts()["direction"] == direction


def test_padding_may_be_larger_behind_than_before(job: Job) -> None:
    assert job(problem="mb1ic2ih6oc3oh6kh2", direction="FWD_I").check().passed


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"dtype": "int8"}, "no integer convolution that rounds its result"),
        ({"benchdnn": "benchdnn"}, "compared with runtime torch only"),
        ({"memory_format": "channels_last"}, "one operator"),
        ({"problem": "mb4000000ic512ih200oc512kh1"}, "largest minibatch that fits is [0-9]+: set args.mb to"),
    ],
)
def test_unsupported_convolutions_are_refused(job: Job, values: dict[str, Any], reason: str) -> None:
    with pytest.raises(Infeasible, match=reason):
        job(**values)


def test_a_refusal_by_the_framework_shows_its_message(job: Job, framework: str) -> None:
    if framework == "jax":
        assert job(problem="mb1ic2ih6oc3kh2dh1", direction="BWD_D").check().passed
        return
    with pytest.raises(Infeasible, match="dilation"):
        job(problem="mb1ic2ih6oc3kh2dh1", direction="BWD_D")


def test_the_builders_exist(framework: str) -> None:
    module, _, function = CONVOLUTION.builders[framework].partition(":")
    assert callable(getattr(importlib.import_module(module), function))
