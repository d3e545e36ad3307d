"""Arithmetic and conditions over axis names, parsed with `ast` and an allow list, never run as Python."""

import ast
import operator
import re
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from corewise.errors import suggest_nearest

MAX_CHARACTERS = 500
MAX_NODES = 200

_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda value, members: value in members,
    ast.NotIn: lambda value, members: value not in members,
}
_MEMBERSHIP = (ast.In, ast.NotIn)
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Not: operator.not_,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {"min": min, "max": max, "abs": abs}
_SYNTAX_HINTS = {
    r"(?<![=<>!])=(?!=)": "write == to compare",
    r"&&": "write `and` for &&",
    r"\|\|": "write `or` for ||",
    r"!(?!=)": "write `not` for !",
}
_YAML_CONSTANTS = {"true": True, "false": False, "null": None}


class ExpressionError(Exception):
    """An invalid expression, or one that has no value at a point; the text says why."""


@dataclass(frozen=True)
class Expression:
    """A checked expression; expressions of the same text are equal."""

    text: str
    names: frozenset[str]
    tree: ast.expr = field(repr=False, compare=False)

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        """Return the value of the expression for the given values of its names."""
        try:
            return _evaluate(self.tree, values)
        except ExpressionError as error:
            reason = str(error)
        except ZeroDivisionError:
            reason = "division by zero"
        except OverflowError:
            reason = "a number is too large"
        except TypeError as error:
            reason = str(error)
        known = ", ".join(f"{name} = {values[name]!r}" for name in sorted(self.names) if name in values)
        raise ExpressionError(f"{self.text!r} has no value: {reason}" + (f" ({known})" if known else ""))


def parse_expression(text: str, names: Collection[str], choice_values: Collection[str] = ()) -> Expression:
    """Parse an expression that may use `names` and `args.ANYTHING`.

    `choice_values` are texts that people tend to write without quotes; they only improve error messages.
    """
    tree = _parse(text)
    used = set[str]()
    for node in _list_checked_nodes(tree, text):
        name = _read_name(node)
        if name is None or (isinstance(node, ast.Name) and node.id in _YAML_CONSTANTS):
            continue
        if name not in names and not name.startswith("args."):
            hint = f"put the value in quotes: '{name}'" if name in choice_values else suggest_nearest(name, names)
            raise ExpressionError(f"unknown name {name!r} in {text!r}; {hint}")
        used.add(name)
    return Expression(text, frozenset(used), tree)


def parse_condition(
    text: str, names: Collection[str], flags: Collection[str] = (), choice_values: Collection[str] = ()
) -> Expression:
    """Parse an expression that is true or false; `flags` are the names of boolean values."""
    expression = parse_expression(text, names, choice_values)
    if not _is_condition(expression.tree, flags):
        raise ExpressionError(
            f"{text!r} is neither true nor false; compare it, for example 'processes * threads <= allocation'"
        )
    return expression


def _parse(text: str) -> ast.expr:
    if len(text) > MAX_CHARACTERS:
        raise ExpressionError(f"the expression has {len(text)} characters; at most {MAX_CHARACTERS} are allowed")
    line = " ".join(text.split())
    if not line:
        raise ExpressionError("the expression is empty")
    try:
        # Python warns about odd literals, which are rejected later or harmless here.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(line, mode="eval").body
    except SyntaxError as error:
        hint = next((hint for pattern, hint in _SYNTAX_HINTS.items() if re.search(pattern, line)), error.msg)
        raise ExpressionError(f"cannot read {text!r}: {hint}") from None
    except (ValueError, RecursionError, MemoryError):
        raise ExpressionError(f"cannot read {text!r}") from None


def _list_checked_nodes(tree: ast.expr, text: str) -> list[ast.expr]:
    """Return all operands of the tree, or raise if one of them is not allowed."""
    inner = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    inner |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    containers = {
        id(member)
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare)
        for op, member in zip(node.ops, node.comparators, strict=True)
        if isinstance(op, _MEMBERSHIP)
    }
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.expr) and id(node) not in inner]
    if len(nodes) > MAX_NODES:
        raise ExpressionError(f"{text!r} has {len(nodes)} parts; at most {MAX_NODES} are allowed")
    for node in nodes:
        problem = _find_problem(node, id(node) in containers)
        if problem:
            raise ExpressionError(f"{problem} in {text!r}")
    return nodes


def _find_problem(node: ast.expr, is_container: bool) -> str:
    """Return why a node is not allowed, or an empty text."""
    if is_container:
        return "" if isinstance(node, ast.Tuple | ast.List) else "'in' needs a list, for example (1, 2)"
    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None):
            return ""
        case ast.Name() | ast.BoolOp() | ast.Attribute(value=ast.Name(id="args")):
            return ""
        case ast.BinOp(op=ast.Pow()):
            return "'**' is not allowed"
        case ast.BinOp(op=op):
            return "" if type(op) in _ARITHMETIC else "only + - * / // % are allowed"
        case ast.UnaryOp(op=unary):
            return "" if type(unary) in _UNARY else "'~' is not allowed"
        case ast.Compare(ops=ops):
            return "" if all(type(op) in _COMPARISONS for op in ops) else "'is' is not allowed (write ==)"
        case ast.Call():
            return _find_call_problem(node)
        case ast.Tuple() | ast.List():
            return "a list is allowed only after 'in'"
    return f"{type(node).__name__.lower()} is not allowed"


def _find_call_problem(node: ast.Call) -> str:
    if not isinstance(node.func, ast.Name) or node.func.id not in _FUNCTIONS:
        return "only min, max and abs can be called"
    if node.keywords or any(isinstance(argument, ast.Starred) for argument in node.args):
        return "min, max and abs take plain values"
    max_args = 1 if node.func.id == "abs" else MAX_NODES
    min_args = 1 if node.func.id == "abs" else 2
    if not min_args <= len(node.args) <= max_args:
        return f"{node.func.id} takes {'one value' if node.func.id == 'abs' else 'two values or more'}"
    return ""


def _read_name(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"args.{node.attr}"
    return None


def _is_condition(node: ast.expr, flags: Collection[str]) -> bool:
    match node:
        case ast.Compare() | ast.Constant(value=bool()):
            return True
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _is_condition(operand, flags)
        case ast.BoolOp(values=values):
            return all(_is_condition(value, flags) for value in values)
        case ast.Name(id=name):
            return name in flags or name in ("true", "false")
    return False


def _evaluate(node: ast.expr, values: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name() | ast.Attribute():
            return _find_value(_read_name(node) or "", values)
        case ast.BinOp(left=left, op=op, right=right):
            return _ARITHMETIC[type(op)](_evaluate_number(left, values), _evaluate_number(right, values))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _evaluate(operand, values)
        case ast.UnaryOp(op=unary, operand=operand):
            return _UNARY[type(unary)](_evaluate_number(operand, values))
        case ast.BoolOp(op=op, values=parts):
            return _evaluate_bool(isinstance(op, ast.And), parts, values)
        case ast.Compare():
            return _evaluate_comparison(node, values)
        case ast.Call(func=ast.Name(id=function), args=arguments):
            return _FUNCTIONS[function](*(_evaluate_number(argument, values) for argument in arguments))
        case ast.Tuple(elts=members) | ast.List(elts=members):
            return tuple(_evaluate(member, values) for member in members)
    raise AssertionError(f"unchecked node {ast.dump(node)}")


def _evaluate_bool(is_and: bool, parts: list[ast.expr], values: Mapping[str, Any]) -> Any:
    result: Any = None
    for part in parts:
        result = _evaluate(part, values)
        if bool(result) != is_and:
            break
    return result


def _evaluate_comparison(node: ast.Compare, values: Mapping[str, Any]) -> bool:
    left = _evaluate(node.left, values)
    for op, comparator in zip(node.ops, node.comparators, strict=True):
        right = _evaluate(comparator, values)
        if not _COMPARISONS[type(op)](left, right):
            return False
        left = right
    return True


def _evaluate_number(node: ast.expr, values: Mapping[str, Any]) -> Any:
    """Return an operand's value; only numbers, because a string times a number can fill the memory."""
    value = _evaluate(node, values)
    if not isinstance(value, int | float):
        raise ExpressionError(f"{value!r} is not a number")
    return value


def _find_value(name: str, values: Mapping[str, Any]) -> Any:
    if name in values:
        return values[name]
    if name in _YAML_CONSTANTS:
        return _YAML_CONSTANTS[name]
    raise ExpressionError(f"{name} is not set here")
