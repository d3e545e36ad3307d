"""The class of every setting, and the documents' table of them."""

import re
from pathlib import Path
from typing import Any

import pytest

from corewise.measured.workloads.base import Traits, describe_traits
from corewise.measured.workloads.registry import find_workload
from corewise.study.axes import AXES
from corewise.study.planning.numerical_effects import (
    AXIS_EFFECTS,
    FREE_EFFECTS,
    VALUE_EFFECTS,
    NumericalEffect,
    judge_setting,
)
from corewise.study.syntax.expressions import Expression

DOCUMENT = Path(__file__).resolve().parents[3] / "docs/study-files.md"


def test_every_axis_has_a_class_and_a_reason_in_one_line() -> None:
    assert set(AXIS_EFFECTS) == set(AXES)
    assert all(j.reason and "\n" not in j.reason for j in (*AXIS_EFFECTS.values(), *VALUE_EFFECTS.values()))
    assert all(name in AXES and value in AXES[name].choices for name, value in VALUE_EFFECTS)


def test_a_default_changes_nothing() -> None:
    for axis in AXES.values():
        if not isinstance(axis.default, Expression):
            assert judge_setting(axis.name, axis.default).effect is NumericalEffect.SAME_NUMBERS


@pytest.mark.parametrize(
    ("name", "value", "knob_class"),
    [
        ("allocator", "retain", "same-numbers"),
        ("huge_pages", "transparent", "same-numbers"),
        ("threads", 4, "same-precision"),
        ("freezing", "fold", "same-precision"),
        ("memory_format", "channels_last", "same-precision"),
        ("dtype", "bfloat16", "lower-precision"),
        ("dtype", "float64", "same-precision"),
        ("float32_precision", "tf32", "lower-precision"),
        ("denormals", "flush", "lower-precision"),
        ("batch", 32, "batch"),
        ("args.image_size", 64, "batch"),
    ],
)
def test_a_setting_is_judged_by_what_it_may_change(name: str, value: Any, knob_class: str) -> None:
    assert judge_setting(name, value).effect == knob_class


@pytest.mark.parametrize(
    ("workload", "args", "knob_class", "why"),
    [
        ("resnet50", {}, "batch-statistics", "batch normalisation sees only the samples of one process"),
        ("alexnet", {}, "batch-statistics", "dropout draws other zeros in each process"),
        ("transformer", {}, "same-precision", "gradients are summed in another order"),
        ("transformer", {"dropout": 0.1}, "batch-statistics", "dropout draws other zeros in each process"),
        ("lstm_ensemble", {}, "same-precision", "gradients are summed in another order"),
    ],
)
def test_training_together_is_judged_by_the_workloads_layers(
    workload: str, args: dict[str, Any], knob_class: str, why: str
) -> None:
    traits = describe_traits(find_workload(workload), args)
    judged = judge_setting("processes", 2, mode="train", traits=traits)
    assert (judged.effect, judged.reason) == (knob_class, why)
    assert judge_setting("processes", 2, mode="infer", traits=traits).effect is NumericalEffect.SAME_NUMBERS


def test_what_is_not_known_of_a_workload_is_taken_for_the_worse() -> None:
    for traits in (None, Traits()):
        assert judge_setting("processes", 2, mode="train", traits=traits).effect is NumericalEffect.BATCH_STATISTICS


def test_only_what_keeps_the_precision_is_free() -> None:
    assert {j.effect for n, j in AXIS_EFFECTS.items() if n in ("batch", "dtype")}.isdisjoint(FREE_EFFECTS)
    assert judge_setting("execution", "compile").effect in FREE_EFFECTS


def test_an_unknown_axis_gives_the_nearest() -> None:
    with pytest.raises(ValueError, match="unknown axis 'thread'; did you mean 'threads'"):
        judge_setting("thread", 2)


def test_the_documents_table_is_that_of_the_code() -> None:
    section = DOCUMENT.read_text().partition("### What a setting may change")[2].partition("\n### ")[0]
    rows = [row.split("|")[1:3] for row in section.splitlines() if row.startswith("| `")]
    shown = {classes.strip(" `"): set(re.findall(r"`([\w: .]+)`", axes)) for classes, axes in rows}
    assert list(shown) == [knob_class.value for knob_class in NumericalEffect]
    wanted: dict[str, set[str]] = {knob_class.value: set() for knob_class in NumericalEffect}
    for name, judgement in AXIS_EFFECTS.items():
        wanted[judgement.effect].add(name)
    for (name, value), judgement in VALUE_EFFECTS.items():
        wanted[judgement.effect].add(f"{name}: {value}")
    wanted["same-precision"] |= {"nodes", "processes"}
    wanted["batch-statistics"] |= {"nodes", "processes"}
    wanted["batch"].add("args.NAME")
    assert shown == wanted
