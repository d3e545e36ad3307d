import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corewise.study.axes import AXES, Keyword, check_axis_name, order_by_dependency, read_axis_value
from corewise.study.syntax.expressions import Expression


@pytest.mark.parametrize(
    ("keyword", "allocation", "numbers"),
    [
        ("allocation", 6, (6,)),
        ("powers-of-two", 1, (1,)),
        ("powers-of-two", 8, (1, 2, 4, 8)),
        ("powers-of-two", 12, (1, 2, 4, 8, 12)),
        ("all-factorisations", 1, (1,)),
        ("all-factorisations", 12, (1, 2, 3, 4, 6, 12)),
    ],
)
def test_keywords_stand_for_numbers(keyword: str, allocation: int, numbers: tuple[int, ...]) -> None:
    assert Keyword(keyword).resolve(allocation) == numbers


@settings(deadline=None)
@given(st.integers(1, 2048))
def test_keywords_never_ask_for_more_than_the_allocation(allocation: int) -> None:
    for keyword in ("powers-of-two", "all-factorisations"):
        numbers = Keyword(keyword).resolve(allocation)
        assert numbers[0] == 1
        assert numbers[-1] == allocation
        assert list(numbers) == sorted(set(numbers))


def test_every_default_is_a_value_its_axis_takes() -> None:
    for axis in AXES.values():
        if not isinstance(axis.default, Expression):
            assert read_axis_value(axis.name, axis.default) == axis.default


def test_every_axis_has_one_line_of_help() -> None:
    assert all(axis.help and "\n" not in axis.help for axis in AXES.values())


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("threads", 0, "threads must be at least 1, not 0"),
        ("threads", -4, "threads must be at least 1, not -4"),
        ("threads", 10**6, "threads must be at most 65536"),
        ("threads", True, "threads needs a whole number, not True"),
        ("threads", 2.5, "threads needs a whole number, not 2.5"),
        ("threads", None, "threads needs a whole number, not None"),
        ("threads", "4", "write 4 without quotes"),
        ("threads", "power-of-two", "did you mean 'powers-of-two'?"),
        ("threads", [1, 2], "threads takes single values"),
        ("threads", {"a": 1}, "threads takes single values"),
        ("threads", "= threads * 2", "threads depends on itself"),
        ("threads", "= allocaton", "did you mean 'allocation'?"),
        ("threads", "=", "the expression is empty"),
        ("batch", "allocation", "batch needs a whole number, not 'allocation'; write `= ...` for an expression"),
        ("batch", 0, "batch must be at least 1"),
        ("loader_workers", -1, "loader_workers must be at least 0"),
        ("reserved_cores", "= cores // 2", "takes no expression"),
        ("reserved_cores", "allocation", "needs a whole number"),
        ("memory_format", "chanels_last", "did you mean 'channels_last'?"),
        ("dtype", 32, "known: bfloat16, complex128, complex64, float16, float32"),
        ("dtype", "= 3", "unknown value '= 3' of dtype"),
        ("smt", "yes", "smt is true or false, not 'yes'"),
        ("smt", 1, "smt is true or false, not 1"),
        ("data", 3, "a folder, not 3"),
        ("data", "", "a folder, not ''"),
        ("args.image_size", [1], "args.image_size takes single values"),
    ],
)
def test_a_wrong_value_says_what_is_wrong(name: str, value: object, expected: str) -> None:
    with pytest.raises(ValueError, match=re.escape(expected)):
        read_axis_value(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [("interop_threads", None), ("loader_workers", 0), ("args.depth", None), ("args.rate", 0.5), ("args.kind", "x")],
)
def test_plain_values_come_back_as_they_are(name: str, value: object) -> None:
    assert read_axis_value(name, value) == value


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("thread", "did you mean 'threads'?"),
        ("mode", "write it at the top level"),
        ("args.", "for example args.image_size"),
        ("args.a.b", "for example args.image_size"),
        ("args", "does not name a parameter"),
        ("zzz", "known: "),
    ],
)
def test_an_unknown_axis_gives_the_nearest(name: str, expected: str) -> None:
    with pytest.raises(ValueError, match=re.escape(expected)):
        check_axis_name(name)


def test_axes_are_ordered_after_what_they_need() -> None:
    values = {
        "threads": (1, read_axis_value("threads", "= allocation // processes")),
        "batch": (read_axis_value("batch", "= 4 * threads"),),
        "processes": (1, 2),
    }
    assert order_by_dependency(values) == ("processes", "threads", "batch")


@pytest.mark.parametrize("value", [10**400, -(10**400), float("nan"), float("inf")])
def test_an_argument_must_be_a_number_that_a_record_can_hold(value: float) -> None:
    with pytest.raises(ValueError, match=r"args\.size must be finite"):
        read_axis_value("args.size", value)
