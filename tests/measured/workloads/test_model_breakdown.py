"""Breakdowns: JSON, shares of the time, and convolutions in benchdnn's notation."""

import json
from dataclasses import replace

import pytest
from tests.explain.sample_breakdown import CONV as MADE_CONV

from corewise.measured.workloads.model_breakdown import (
    BETWEEN,
    CATEGORIES,
    Breakdown,
    compute_low_quartile,
    compute_shares,
    compute_typical,
    format_conv_problem,
    from_json,
    to_json,
)
from corewise.measured.workloads.primitives.convolution_problem import parse_convolution

CONV = replace(MADE_CONV, operator="convolution", in_model_s=0.6, alone_s=0.5, alone_best_s=0.45, flops=3e9)
ITEM = replace(CONV, operator="item", category="other arithmetic", in_model_s=0.1, alone_s=None, flops=0.0)
FOUND = Breakdown(
    step_s=1.0,
    watched_step_s=1.1,
    primitives=(CONV, ITEM),
    steps_s=(0.9, 1.0, 1.1),
    sums_over_steps=(0.6, 0.61),
    call_cost_s=1e-6,
    cache_bytes=2**25,
    num_checked=1,
    check_error=1e-7,
    num_threads=2,
    device="cpu",
)


def test_a_breakdown_comes_back_from_its_json() -> None:
    assert from_json(json.loads(json.dumps(to_json(FOUND)))) == FOUND


def test_a_breakdown_of_another_schema_is_refused() -> None:
    with pytest.raises(ValueError, match="schema 99"):
        from_json({**to_json(FOUND), "schema": 99})


def test_the_shares_and_what_lies_between_operators_make_up_the_step() -> None:
    found = compute_shares(FOUND)
    assert [each.category for each in found] == ["convolution", "other arithmetic", BETWEEN]
    assert sum(each.in_model_s for each in found) == pytest.approx(FOUND.step_s)
    assert sum(each.of_step for each in found) == pytest.approx(1.0)


def test_shares_are_of_the_step_and_nothing_negative_lies_between_operators() -> None:
    slow = replace(FOUND, step_s=0.5)
    found = compute_shares(slow)
    assert [each.of_step for each in found] == pytest.approx([1.2, 0.2, 0.0])
    assert found[-1].in_model_s == 0.0
    assert slow.between_s is None
    assert FOUND.between_s == pytest.approx(0.3)


@pytest.mark.parametrize(("step_s", "is_doubtful"), [(1.0, False), (0.68, False), (0.66, True)])
def test_operators_that_take_longer_than_their_step_are_doubtful(step_s: float, is_doubtful: bool) -> None:
    # The operators take 0.7 s.
    assert replace(FOUND, step_s=step_s).is_doubtful is is_doubtful


def test_a_time_is_the_median_over_rounds_of_the_low_quartile() -> None:
    assert compute_low_quartile([4.0, 1.0, 3.0, 2.0]) == 1.0
    assert compute_low_quartile([5.0, 4.0, 1.0, 3.0, 2.0]) == 2.0
    assert compute_typical([[1.0, 9.0, 9.0], [3.0, 90.0], [2.0]]) == 2.0
    assert compute_typical([[1.0], []]) == 1.0


def test_work_that_is_not_counted_has_no_rate() -> None:
    assert replace(CONV, flops=None).gflop_per_s is None
    assert ITEM.gflop_per_s == 0.0


def test_what_does_not_run_alone_counts_as_in_the_model() -> None:
    assert FOUND.alone_s == pytest.approx(0.5 + 0.1)
    assert FOUND.sum_over_step == pytest.approx(0.6)
    assert ITEM.model_over_alone is None


def test_rates_are_those_of_all_calls_in_the_model() -> None:
    assert CONV.gflop_per_s == pytest.approx(4 * 3e9 / 0.6 / 1e9)
    assert CONV.gbyte_per_s == pytest.approx(4 * 2.6e7 / 0.6 / 1e9)
    assert CONV.category in CATEGORIES


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "mb16ic64ih56oc64oh56kh3ph1"),
        ({"groups": 32}, "g32mb16ic64ih56oc64oh56kh3ph1"),
        ({"stride": (2, 2), "out_size": (28, 28)}, "mb16ic64ih56oc64oh28kh3sh2ph1"),
        ({"kernel": (1, 7), "padding": (0, 3)}, "mb16ic64ih56iw56oc64oh56ow56kh1kw7ph0pw3"),
        ({"dilation": (2, 2), "padding": (2, 2)}, "mb16ic64ih56oc64oh56kh3ph2dh1"),
        ({"in_size": (56, 28), "out_size": (56, 28)}, "mb16ic64ih56iw28oc64oh56ow28kh3kw3ph1pw1"),
    ],
)
def test_a_convolution_is_written_as_benchdnn_does(given: dict[str, object], expected: str) -> None:
    usual: dict[str, object] = {
        "batch": 16,
        "in_size": (56, 56),
        "out_size": (56, 56),
        "kernel": (3, 3),
        "channels": (64, 64),
        "padding": (1, 1),
    }
    merged = {**usual, **given}
    assert format_conv_problem(**merged) == expected  # type: ignore[arg-type]
    read = parse_convolution(expected)
    assert read.source_shape == (16, 64, *merged["in_size"])  # type: ignore[misc]
    assert read.destination_shape == (16, 64, *merged["out_size"])  # type: ignore[misc]
    assert [each.padding for each in read.dimensions] == list(merged["padding"])  # type: ignore[call-overload]
