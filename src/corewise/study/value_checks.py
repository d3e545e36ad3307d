"""Strict checks of parsed JSON: a value that readers cannot use is refused where it is parsed.

A store may hold 100,000 records. Values are therefore checked in bulk, by functions that run in C. Only if such a
check fails is the wrong value searched for and named.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import orjson

from corewise.measured.parameters import TrialParameters

Check = Callable[[Any], None]
Values = Mapping[str, Any] | Sequence[Any]

# The number of levels that orjson writes.
MAX_LEVELS = 254
# Far above the limits of all axes. Tables and pages hold integers of 64 bits.
MAX_COUNT = 2**63 - 1
# Far above every measured figure. Sums, products and squares of a few such figures are finite.
MAX_FIGURE = 1e100
_MAX_NAME_CHARS = 40
_SCALARS_WITHOUT_FLOAT = frozenset((str, int, bool, type(None)))


class BadValue(ValueError):
    """A value that its field cannot hold. The text continues the field's name: `.step_s is null, not ...`."""

    def describe(self, root: str) -> str:
        """Return the whole sentence; `root` names the checked value itself."""
        text = str(self)
        return text[1:] if text.startswith(".") else f"{root}{text}"


def check_text(value: Any) -> None:
    """Raise BadValue unless the value is text that UTF-8 can hold."""
    if type(value) is not str:
        raise BadValue(f" is {describe_value(value)}, not text")
    if not value.isascii() and not _is_unicode(value):
        raise BadValue(f" is {describe_value(value)}, which is not valid Unicode")


def check_mapping(value: Any) -> None:
    """Raise BadValue unless the value is a mapping."""
    if type(value) is not dict:
        raise BadValue(f" is {describe_value(value)}, not a mapping")


def check_list(value: Any) -> None:
    """Raise BadValue unless the value is a list."""
    if type(value) is not list:
        raise BadValue(f" is {describe_value(value)}, not a list")


def check_number(value: Any) -> None:
    """Raise BadValue unless the value is a finite number that figures can be computed from."""
    _check_finite(value)
    if abs(value) > MAX_FIGURE:
        raise BadValue(f" is {describe_value(value)}, which is beyond {MAX_FIGURE:g}")


def check_scalar(value: Any) -> None:
    """Raise BadValue for a list or mapping."""
    if isinstance(value, dict | list):
        raise BadValue(f" is {describe_value(value)}, not a single value")


def check_number_list(value: Any) -> None:
    """Raise BadValue unless the value is a list of finite numbers."""
    check_list(value)
    if not _are_numbers(value):
        check_each(value, check_number)


def check_number_mapping(value: Any) -> None:
    """Raise BadValue unless the value is a mapping to finite numbers."""
    check_mapping(value)
    if not (_are_numbers(value.values()) and _are_ascii(value)):
        check_each(value, check_number)


def check_text_list(value: Any) -> None:
    """Raise BadValue unless the value is a list of texts."""
    check_list(value)
    if not _are_ascii(value):
        check_each(value, check_text)


def check_text_mapping(value: Any) -> None:
    """Raise BadValue unless the value is a mapping to texts."""
    check_mapping(value)
    if not (_are_ascii(value.values()) and _are_ascii(value)):
        check_each(value, check_text)


def check_each(values: Values, check: Check) -> None:
    """Check every value of a mapping or list; the error names the first wrong one."""
    if isinstance(values, Mapping):
        _check_names(values)
        check_fields(values, dict.fromkeys(values, check))
        return
    for index, value in enumerate(values):
        try:
            check(value)
        except BadValue as error:
            raise BadValue(f"[{index}]{error}") from None


def check_fields(values: Mapping[str, Any], checks: Mapping[str, Check]) -> None:
    """Check those fields of a mapping that have a check; a missing field is accepted."""
    for name, check in checks.items():
        if name in values:
            try:
                check(values[name])
            except BadValue as error:
                raise BadValue(f".{name[:_MAX_NAME_CHARS]}{error}") from None


def check_plain(values: Any) -> None:
    """Raise BadValue unless the value is a mapping or list of plain JSON: finite, valid Unicode, few levels."""
    try:
        # Orjson writes a number that is not finite as null.
        if b"null" not in orjson.dumps(values) or _SCALARS_WITHOUT_FLOAT.issuperset(map(type, _list_values(values))):
            return
    except TypeError:
        # It rejects integers beyond 64 bits, too, which are valid.
        pass
    _check_level(values, MAX_LEVELS)


def check_plain_mapping(value: Any) -> None:
    """Raise BadValue unless the value is a mapping to plain JSON."""
    check_mapping(value)
    check_plain(value)


def check_params(params: Mapping[str, Any], *, may_hold_expressions: bool) -> None:
    """Raise BadValue unless every parameter of a trial has the type of its axis.

    Args:
        may_hold_expressions: accept text for a count: a skipped point keeps an expression that has no value.
    """
    for name, types in _PARAM_TYPES.items():
        value = params.get(name, _MISSING)
        if value is _MISSING or (type(value) in types and (type(value) is not int or 0 <= value <= MAX_COUNT)):
            continue
        if not (may_hold_expressions and int in types and type(value) is str):
            raise BadValue(f".{name} is {describe_value(value)}, not {_TYPE_NAMES[types]}")


def describe_value(value: Any) -> str:
    """Describe a wrong value in a few words."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        if _is_finite_number(value):
            return str(value)
        return "an integer too large for a float" if isinstance(value, int) else f"the number {value}"
    if isinstance(value, str):
        return f"the text {value[:_MAX_NAME_CHARS]!r}"
    return "a mapping" if isinstance(value, Mapping) else "a list"


def _check_finite(value: Any) -> None:
    if not _is_finite_number(value):
        raise BadValue(f" is {describe_value(value)}, not a finite number")


def _check_level(values: Values, levels: int) -> None:
    """Check each value of a mapping or list, and the levels below it, with one stack frame for each level."""
    named: Iterable[tuple[str, Any]]
    if isinstance(values, Mapping):
        _check_names(values)
        named = ((f".{name[:_MAX_NAME_CHARS]}", value) for name, value in values.items())
    else:
        named = ((f"[{index}]", value) for index, value in enumerate(values))
    for name, value in named:
        try:
            if isinstance(value, dict | list | tuple):
                if not levels:
                    raise BadValue(f" is nested more than {MAX_LEVELS} levels deep")
                _check_level(value, levels - 1)
            elif isinstance(value, str):
                check_text(value)
            elif value is not None:
                _check_finite(value)
        except BadValue as error:
            raise BadValue(f"{name}{error}") from None


def _check_names(names: Iterable[str]) -> None:
    if not all(map(_is_unicode, names)):
        raise BadValue(" has a name that is not valid Unicode")


def _are_numbers(values: Collection[Any]) -> bool:
    """Return True if all values are numbers as `check_number` accepts them; False if that is not certain."""
    try:
        # The sum shows a value that is not finite, the maximum one that is too large.
        return math.isfinite(sum(values)) and max(map(abs, values), default=0) <= MAX_FIGURE
    except (TypeError, OverflowError):
        return False


def _are_ascii(values: Iterable[Any]) -> bool:
    """Return True if all values are text in ASCII."""
    try:
        return "".join(values).isascii()
    except TypeError:
        return False


def _is_finite_number(value: Any) -> bool:
    try:
        return isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:
        return False


def _is_unicode(text: str) -> bool:
    """Return False for text with half of a surrogate pair, which UTF-8 cannot hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _list_values(values: Values) -> Iterable[Any]:
    return values.values() if isinstance(values, Mapping) else values


def _find_types(default: Any) -> frozenset[type]:
    """Return the JSON types of a parameter with this default value."""
    if default is None:
        return _COUNT_OR_NULL
    return frozenset((type(default),)) if isinstance(default, int) else _TEXT


_MISSING = object()
_TEXT = frozenset((str,))
_COUNT_OR_NULL = frozenset((int, type(None)))
_TYPE_NAMES = {
    _TEXT: "text",
    _COUNT_OR_NULL: "a count or null",
    frozenset((int,)): "a count",
    frozenset((bool,)): "true or false",
}
_PARAM_TYPES = {
    name: _find_types(default)
    for name, default in vars(TrialParameters()).items()
    if name not in ("arguments", "breakdown")
}
