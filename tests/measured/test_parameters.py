"""The parameters of a trial: typed in code, flat in files."""

import dataclasses
import json
from typing import Any

import pytest

from corewise.measured.parameters import Choice, DType, Mode, TrialParameters
from corewise.measured.trial import Protocol, RankPlacement, Trial, parse_trial, to_json
from corewise.study.axes import AXES
from corewise.study.syntax.expressions import Expression

POINT = {
    "workload": "resnet18", "mode": "infer", "runtime": "torch", "threads": 4, "dtype": "bfloat16",
    "interop_threads": None, "smt": True, "args.image_size": 64, "args.depth": 2.5,
}  # fmt: skip


def trial(params: TrialParameters) -> Trial:
    return Trial("0" * 16, params, Protocol(), (RankPlacement((0,)),), {}, ("python",))


def test_every_axis_is_a_field_with_the_same_default_and_values() -> None:
    flat = TrialParameters().to_mapping()
    assert list(flat) == ["workload", "mode", "runtime", *AXES]
    for name, axis in AXES.items():
        if not isinstance(axis.default, Expression):
            assert flat[name] == axis.default, name
        chosen = getattr(TrialParameters(), name)
        if isinstance(chosen, Choice):
            assert tuple(each.value for each in type(chosen)) == axis.choices, name


def test_a_mapping_becomes_typed_and_the_same_mapping_again() -> None:
    params = TrialParameters.from_mapping(POINT)
    assert (params.mode, params.dtype, params.threads) == (Mode.INFER, DType.BFLOAT16, 4)
    assert params.arguments == {"image_size": 64, "depth": 2.5}
    flat = params.to_mapping()
    assert flat == {**TrialParameters().to_mapping(), **POINT}
    assert TrialParameters.from_mapping(flat) == params
    assert not [value for value in flat.values() if isinstance(value, Choice)]


def test_a_choice_is_its_plain_text_in_json_and_in_messages() -> None:
    assert json.dumps({"dtype": DType.INT8}) == '{"dtype": "int8"}'
    assert f"{DType.INT8} {DType.INT8!s} {'int8' in {DType.INT8: 1}}" == "int8 int8 True"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"thread": 4}, "unknown parameter 'thread'; known: workload, mode"),
        ({"dtype": "float8"}, "unknown value 'float8' of dtype; known: float32, bfloat16"),
    ],
)
def test_what_no_parameter_can_be_is_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        TrialParameters.from_mapping({**POINT, **change})


def test_a_trial_file_holds_the_flat_mapping() -> None:
    made = trial(TrialParameters.from_mapping(POINT))
    data = json.loads(json.dumps(to_json(made)))
    assert data["params"] == made.params.to_mapping()
    assert parse_trial(data) == made


def test_a_trial_file_without_its_workload_is_refused() -> None:
    data = to_json(trial(TrialParameters.from_mapping(POINT)))
    del data["params"]["workload"]
    with pytest.raises(ValueError, match="trial file lacks the parameter 'workload'"):
        parse_trial(data)


def test_a_default_is_recognised() -> None:
    params = TrialParameters.from_mapping(POINT)
    changed = [each.name for each in dataclasses.fields(params) if not params.is_default(each.name)]
    assert changed == ["workload", "mode", "threads", "dtype", "smt", "arguments"]
