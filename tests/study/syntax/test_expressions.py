import ast

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from corewise.study.syntax.expressions import ExpressionError, parse_condition, parse_expression

NAMES = ("processes", "threads", "batch", "allocation", "dtype", "interop_threads", "smt")
VALUES = {"processes": 2, "threads": 4, "batch": 16, "allocation": 8, "dtype": "float32", "smt": False}

numbers = st.one_of(
    st.integers(0, 10**6).map(str),
    st.floats(0, 1e6, allow_nan=False).map(repr),
    st.sampled_from(["processes", "threads", "batch", "allocation", "args.width"]),
)


def _combine_parts(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    operators = ["+", "-", "*", "/", "//", "%", "<", "<=", ">", ">=", "==", "!=", "and", "or"]
    return st.one_of(
        st.tuples(parts, st.sampled_from(operators), parts).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.tuples(parts, parts, parts).map(lambda t: f"({t[0]} < {t[1]} <= {t[2]})"),
        st.tuples(parts, parts, parts).map(lambda t: f"({t[0]} in ({t[1]}, {t[2]}))"),
        st.tuples(parts, parts).map(lambda t: f"min({t[0]}, max({t[1]}, 1))"),
        parts.map(lambda p: f"abs(-{p})"),
        parts.map(lambda p: f"(not {p})"),
    )


class Args:
    width = 7


@settings(deadline=None)
@given(st.recursive(numbers, _combine_parts, max_leaves=12))
def test_safe_expressions_agree_with_python(text: str) -> None:
    assume(len(text) <= 500)
    expression = parse_expression(text, NAMES)
    values = {**VALUES, "args.width": Args.width}
    try:
        expected = eval(text, {"args": Args, **VALUES})
    except (ZeroDivisionError, OverflowError):
        with pytest.raises(ExpressionError):
            expression.evaluate(values)
    else:
        result = expression.evaluate(values)
        assert result == expected
        assert type(result) is type(expected)


@settings(deadline=None)
@given(st.text(max_size=60))
def test_any_text_is_read_or_refused_but_never_breaks(text: str) -> None:
    try:
        expression = parse_expression(text, NAMES)
    except ExpressionError:
        return
    try:
        value = expression.evaluate(VALUES)
    except ExpressionError:
        return
    # The text `null` has the value None.
    assert value is None or isinstance(value, (bool, int, float, str))


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "open('x')",
        "().__class__",
        "threads.__class__",
        "args.__class__.__mro__",
        "[x for x in (1, 2)]",
        "lambda: 1",
        "threads if smt else 1",
        "f'{threads}'",
        "b'x' == b'x'",
        "1j",
        "threads := 3",
        "min(*(1, 2))",
        "max(1, 2, key=abs)",
        "abs(1, 2)",
        "min(threads)",
        "(1, 2)",
        "threads in 5",
        "dtype in 'float32'",
        "threads is 4",
        "~threads",
        "threads << 4",
        "threads @ 4",
        "{1: 2}",
        "threads[0]",
        "...",
    ],
)
def test_what_is_not_on_the_white_list_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError):
        parse_expression(text, NAMES)


def test_powers_are_refused_by_name() -> None:
    with pytest.raises(ExpressionError, match=r"'\*\*' is not allowed"):
        parse_expression("9 ** 9 ** 9", NAMES)


def test_a_long_expression_is_refused_with_its_length() -> None:
    with pytest.raises(ExpressionError, match="501 characters"):
        parse_expression("1" * 501, NAMES)


def test_an_expression_of_many_parts_is_refused() -> None:
    with pytest.raises(ExpressionError, match="parts; at most 200 are allowed"):
        parse_expression("-" * 300 + "1", NAMES)


@pytest.mark.parametrize("text", ["(" * 240 + "1" + ")" * 240, "not " * 120 + "1"])
def test_deep_nesting_is_read_or_refused_without_a_crash(text: str) -> None:
    try:
        result = parse_expression(text, NAMES).evaluate({})
    except ExpressionError:
        result = None
    assert result in (True, None)


def test_text_cannot_be_multiplied_into_a_huge_one() -> None:
    with pytest.raises(ExpressionError, match="'float32' is not a number"):
        parse_expression("dtype * 1000000000", NAMES).evaluate(VALUES)


def test_an_unknown_name_gives_the_nearest_known_one() -> None:
    with pytest.raises(ExpressionError, match=r"unknown name 'proceses'.*did you mean 'processes'\?"):
        parse_expression("proceses * 2", NAMES)


def test_a_value_written_without_quotes_is_recognised() -> None:
    with pytest.raises(ExpressionError, match=r"unknown name 'bfloat16'.*put the value in quotes: 'bfloat16'"):
        parse_expression("dtype == bfloat16", NAMES, choice_values=("bfloat16",))


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("threads = 4", "write == to compare"),
        ("smt && threads > 1", "write `and` for &&"),
        ("smt || threads > 1", "write `or` for ||"),
        ("!smt", "write `not` for !"),
        ("threads <", "invalid syntax"),
    ],
)
def test_slips_of_syntax_are_explained(text: str, hint: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse_expression(text, NAMES)
    assert str(caught.value) == f"cannot read {text!r}: {hint}"


def test_division_by_zero_names_the_values() -> None:
    with pytest.raises(
        ExpressionError, match=r"'batch // \(threads - 4\)' has no value: division by zero \(batch = 16, threads = 4\)"
    ):
        parse_expression("batch // (threads - 4)", NAMES).evaluate(VALUES)


def test_numbers_cannot_be_compared_with_text() -> None:
    with pytest.raises(ExpressionError, match="has no value: '<' not supported"):
        parse_expression("dtype < 3", NAMES).evaluate(VALUES)


def test_a_name_that_is_not_set_is_named() -> None:
    with pytest.raises(ExpressionError, match=r"args\.width is not set here"):
        parse_expression("args.width + 1", NAMES).evaluate(VALUES)


def test_null_and_booleans_may_be_written_as_in_yaml() -> None:
    values = {**VALUES, "interop_threads": None}
    assert parse_condition("interop_threads == null and smt == false", NAMES).evaluate(values) is True


def test_the_second_part_of_and_is_left_alone_when_the_first_decides() -> None:
    assert parse_expression("threads > 4 and batch // 0 == 1", NAMES).evaluate(VALUES) is False


@pytest.mark.parametrize("text", ["threads > 1", "not smt", "smt or threads in (1, 2)", "true"])
def test_conditions_are_true_or_false(text: str) -> None:
    assert parse_condition(text, NAMES, flags=("smt",)).evaluate(VALUES) in (True, False)


@pytest.mark.parametrize("text", ["processes * threads", "threads", "smt and threads", "min(1, 2)"])
def test_a_constraint_that_compares_nothing_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError, match="neither true nor false"):
        parse_condition(text, NAMES, flags=("smt",))


def test_names_used_are_known_and_trees_are_not_compared() -> None:
    one, two = (parse_expression("processes * args.width", NAMES) for _ in range(2))
    assert one.names == {"processes", "args.width"}
    assert one == two
    assert isinstance(one.tree, ast.BinOp)
