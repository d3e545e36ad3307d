"""Checks of parsed JSON: what they accept, and how they name what is wrong."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corewise.study.value_checks import (
    MAX_LEVELS,
    BadValue,
    Check,
    check_number_list,
    check_number_mapping,
    check_params,
    check_plain,
    check_text_list,
    check_text_mapping,
)

NAN, INFINITY, HUGE = float("nan"), float("inf"), 10**400


def nest(num_levels: int) -> Any:
    value: Any = 1
    for _ in range(num_levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("check", "value", "problem"),
    [
        (check_number_mapping, {"a": 1, "step_s": NAN}, ".step_s is the number nan, not a finite number"),
        (check_number_mapping, {"a": INFINITY, "b": -INFINITY}, ".a is the number inf, not a finite number"),
        (check_number_mapping, {"a": HUGE}, ".a is an integer too large for a float, not a finite number"),
        (check_number_mapping, {"a": 1.5, "b": None}, ".b is null, not a finite number"),
        (check_number_mapping, {"a": [1]}, ".a is a list, not a finite number"),
        (check_number_mapping, {"a\ud800": 1}, " has a name that is not valid Unicode"),
        (check_number_mapping, [1], " is a list, not a mapping"),
        (check_number_list, [0.1, "0.2"], "[1] is the text '0.2', not a finite number"),
        (check_number_list, {}, " is a mapping, not a list"),
        (check_number_list, [1.0, 1e101], "[1] is 1e+101, which is beyond 1e+100"),
        (check_number_mapping, {"a": 1e308, "b": -1e308}, ".a is 1e+308, which is beyond 1e+100"),
        (check_text_list, ["a", 7], "[1] is 7, not text"),
        (check_text_list, ["\ud800"], r"[0] is the text '\ud800', which is not valid Unicode"),
        (check_text_mapping, {"A": None}, ".A is null, not text"),
        (check_plain, {"a": [1, {"b": NAN}]}, ".a[1].b is the number nan, not a finite number"),
        (check_plain, {"a": None, "b": NAN}, ".b is the number nan, not a finite number"),
        (check_plain, {"a": {"b\ud800": 1}}, ".a has a name that is not valid Unicode"),
        (check_plain, [HUGE], "[0] is an integer too large for a float, not a finite number"),
    ],
)
def test_the_first_wrong_value_is_named_with_its_place(check: Check, value: Any, problem: str) -> None:
    with pytest.raises(BadValue, match=f"^{re.escape(problem)}$"):
        check(value)


@pytest.mark.parametrize(
    ("check", "value"),
    [
        (check_number_mapping, {"a": 1, "b": -0.0, "größe": 1e100, "c": -1e100}),
        (check_number_list, [1e100] * 9),
        (check_plain, {"a": [1e308, None]}),
        (check_text_list, ["größe", ""]),
        (check_plain, {"a": None, "b": [True, 0.5, {"c": "ä"}], "large": 2**80}),
        (check_plain, nest(1 + MAX_LEVELS)),
    ],
)
def test_unusual_but_valid_values_are_accepted(check: Check, value: Any) -> None:
    check(value)


@pytest.mark.parametrize("levels", [2 + MAX_LEVELS, 900])
def test_values_that_are_nested_too_deeply_are_refused(levels: int) -> None:
    with pytest.raises(BadValue, match=f"is nested more than {MAX_LEVELS} levels deep"):
        check_plain(nest(levels))


@pytest.mark.parametrize(
    ("params", "problem"),
    [
        ({"workload": ["resnet50"]}, ".workload is a list, not text"),
        ({"dtype": None}, ".dtype is null, not text"),
        ({"threads": "4"}, ".threads is the text '4', not a count"),
        ({"threads": 4.0}, ".threads is 4.0, not a count"),
        ({"threads": -1}, ".threads is -1, not a count"),
        ({"batch": 2**80}, f".batch is {2**80}, not a count"),
        ({"interop_threads": True}, ".interop_threads is true, not a count or null"),
        ({"smt": 1}, ".smt is 1, not true or false"),
    ],
)
def test_a_parameter_has_the_type_of_its_axis(params: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadValue, match=f"^{re.escape(problem)}$"):
        check_params(params, may_hold_expressions=False)


def test_counts_may_be_expressions_where_the_point_was_skipped() -> None:
    check_params({"threads": "= batch // 0", "interop_threads": None}, may_hold_expressions=True)
    with pytest.raises(BadValue, match="not a count"):
        check_params({"threads": "= batch // 0"}, may_hold_expressions=False)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=5), JSON, max_size=4))
def test_a_value_is_plain_exactly_if_strict_json_can_hold_it(value: dict[str, Any]) -> None:
    def is_plain() -> bool:
        try:
            json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
        except ValueError:
            return False
        return True

    try:
        check_plain(value)
    except BadValue:
        assert not is_plain()
    else:
        assert is_plain()
