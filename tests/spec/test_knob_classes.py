"""The class of every setting, and the documents' table of them."""

import re
from pathlib import Path
from typing import Any

import pytest

from corewise.spec.axes import AXES
from corewise.spec.expressions import Expression
from corewise.spec.knob_classes import AXIS_CLASSES, FREE, VALUE_CLASSES, KnobClass, judge
from corewise.workloads.base import Traits, traits_of
from corewise.workloads.registry import find_workload

DOCUMENT = Path(__file__).resolve().parents[2] / "docs/study-files.md"


def test_every_axis_has_a_class_and_a_reason_in_one_line() -> None:
    assert set(AXIS_CLASSES) == set(AXES)
    assert all(j.why and "\n" not in j.why for j in (*AXIS_CLASSES.values(), *VALUE_CLASSES.values()))
    assert all(name in AXES and value in AXES[name].choices for name, value in VALUE_CLASSES)


def test_a_default_changes_nothing() -> None:
    for axis in AXES.values():
        if not isinstance(axis.default, Expression):
            assert judge(axis.name, axis.default).knob_class is KnobClass.SAME_NUMBERS


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
    assert judge(name, value).knob_class == knob_class


@pytest.mark.parametrize(
    ("workload", "args", "knob_class", "why"),
    [
        ("resnet50", {}, "batch-statistics", "batch normalisation sees the samples of one process only"),
        ("alexnet", {}, "batch-statistics", "dropout draws other zeros in each process"),
        ("transformer", {}, "same-precision", "gradients are added up in another order"),
        ("transformer", {"dropout": 0.1}, "batch-statistics", "dropout draws other zeros in each process"),
        ("lstm_ensemble", {}, "same-precision", "gradients are added up in another order"),
    ],
)
def test_training_together_is_judged_by_the_workloads_layers(
    workload: str, args: dict[str, Any], knob_class: str, why: str
) -> None:
    traits = traits_of(find_workload(workload), args)
    judged = judge("processes", 2, mode="train", traits=traits)
    assert (judged.knob_class, judged.why) == (knob_class, why)
    assert judge("processes", 2, mode="infer", traits=traits).knob_class is KnobClass.SAME_NUMBERS


def test_what_is_not_known_of_a_workload_is_taken_for_the_worse() -> None:
    for traits in (None, Traits()):
        assert judge("processes", 2, mode="train", traits=traits).knob_class is KnobClass.BATCH_STATISTICS


def test_only_what_keeps_the_precision_is_free() -> None:
    assert {j.knob_class for n, j in AXIS_CLASSES.items() if n in ("batch", "dtype")}.isdisjoint(FREE)
    assert judge("execution", "compile").knob_class in FREE


def test_an_unknown_axis_gives_the_nearest() -> None:
    with pytest.raises(ValueError, match="unknown axis 'thread'; did you mean 'threads'"):
        judge("thread", 2)


def test_the_documents_table_is_that_of_the_code() -> None:
    section = DOCUMENT.read_text().partition("### What a setting may change")[2].partition("\n### ")[0]
    rows = [row.split("|")[1:3] for row in section.splitlines() if row.startswith("| `")]
    shown = {classes.strip(" `"): set(re.findall(r"`([\w: .]+)`", axes)) for classes, axes in rows}
    assert list(shown) == [knob_class.value for knob_class in KnobClass]
    wanted: dict[str, set[str]] = {knob_class.value: set() for knob_class in KnobClass}
    for name, judgement in AXIS_CLASSES.items():
        wanted[judgement.knob_class].add(name)
    for (name, value), judgement in VALUE_CLASSES.items():
        wanted[judgement.knob_class].add(f"{name}: {value}")
    wanted["same-precision"].add("processes")
    wanted["batch-statistics"].add("processes")
    wanted["batch"].add("args.NAME")
    assert shown == wanted
