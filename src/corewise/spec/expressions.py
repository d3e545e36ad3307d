"""Arithmetic and conditions over axis names, read with `ast` and a white list, never executed by Python."""

import ast
import operator
import re
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from corewise.spec.errors import nearest

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
_SLIPS = {
    r"(?<![=<>!])=(?!=)": "write == to compare",
    r"&&": "write `and` for &&",
    r"\|\|": "write `or` for ||",
    r"!(?!=)": "write `not` for !",
}
_YAML_CONSTANTS = {"true": True, "false": False, "null": None}


class ExpressionError(Exception):
    """Says what is wrong with an expression, or why it has no value at a point."""


@dataclass(frozen=True)
class Expression:
    """A checked expression; equal to another of the same text."""

    text: str
    names: frozenset[str]
    tree: ast.expr = field(repr=False, compare=False)

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        """The value of the expression where names have the given values."""
        try:
            return _evaluate(self.tree, values)
        except ExpressionError as error:
            reason = str(error)
        except ZeroDivisionError:
            reason = "division by zero"
        except OverflowError:
            reason = "a number grows too large"
        except TypeError as error:
            reason = str(error)
        known = ", ".join(f"{name} = {values[name]!r}" for name in sorted(self.names) if name in values)
        raise ExpressionError(f"{self.text!r} has no value: {reason}" + (f" ({known})" if known else ""))


def parse_expression(text: str, names: Collection[str], words: Collection[str] = ()) -> Expression:
    """The expression in `text`, which may use `names` and `args.ANYTHING`.

    `words` are values that people write without their quotes; they only serve the error's text.
    """
    tree = _parse(text)
    used = set[str]()
    for node in _checked_nodes(tree, text):
        name = _name_of(node)
        if name is None or (isinstance(node, ast.Name) and node.id in _YAML_CONSTANTS):
            continue
        if name not in names and not name.startswith("args."):
            hint = f"a value is put in quotes: '{name}'" if name in words else nearest(name, names)
            raise ExpressionError(f"unknown name {name!r} in {text!r}; {hint}")
        used.add(name)
    return Expression(text, frozenset(used), tree)


def parse_condition(
    text: str, names: Collection[str], flags: Collection[str] = (), words: Collection[str] = ()
) -> Expression:
    """The expression in `text`, which must be one that is true or false; `flags` are names that are so."""
    expression = parse_expression(text, names, words)
    if not _is_condition(expression.tree, flags):
        raise ExpressionError(
            f"{text!r} is neither true nor false; compare it, as in 'processes * threads <= allocation'"
        )
    return expression


def _parse(text: str) -> ast.expr:
    if len(text) > MAX_CHARACTERS:
        raise ExpressionError(f"an expression of {len(text)} characters; at most {MAX_CHARACTERS} are read")
    line = " ".join(text.split())
    if not line:
        raise ExpressionError("an empty expression")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns of odd literals that are refused or harmless here
            return ast.parse(line, mode="eval").body
    except SyntaxError as error:
        hint = next((hint for pattern, hint in _SLIPS.items() if re.search(pattern, line)), error.msg)
        raise ExpressionError(f"cannot read {text!r}: {hint}") from None
    except (ValueError, RecursionError, MemoryError):
        raise ExpressionError(f"cannot read {text!r}") from None


def _checked_nodes(tree: ast.expr, text: str) -> list[ast.expr]:
    """All operands of the tree, once nothing but the white list is found in it."""
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
        raise ExpressionError(f"{text!r} has {len(nodes)} parts; at most {MAX_NODES} are read")
    for node in nodes:
        problem = _problem(node, id(node) in containers)
        if problem:
            raise ExpressionError(f"{problem} in {text!r}")
    return nodes


def _problem(node: ast.expr, is_container: bool) -> str:
    """What is not allowed about one node, or nothing."""
    if is_container:
        return "" if isinstance(node, ast.Tuple | ast.List) else "'in' needs a list such as (1, 2)"
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
            return _problem_of_call(node)
        case ast.Tuple() | ast.List():
            return "a list is allowed only after 'in'"
    return f"{type(node).__name__.lower()} is not allowed"


def _problem_of_call(node: ast.Call) -> str:
    if not isinstance(node.func, ast.Name) or node.func.id not in _FUNCTIONS:
        return "only min, max and abs can be called"
    if node.keywords or any(isinstance(argument, ast.Starred) for argument in node.args):
        return "min, max and abs take plain values"
    num_expected_most = 1 if node.func.id == "abs" else MAX_NODES
    num_expected_least = 1 if node.func.id == "abs" else 2
    if not num_expected_least <= len(node.args) <= num_expected_most:
        return f"{node.func.id} takes {'one value' if node.func.id == 'abs' else 'two values or more'}"
    return ""


def _name_of(node: ast.expr) -> str | None:
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
            return _lookup(_name_of(node) or "", values)
        case ast.BinOp(left=left, op=op, right=right):
            return _ARITHMETIC[type(op)](_number(left, values), _number(right, values))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _evaluate(operand, values)
        case ast.UnaryOp(op=unary, operand=operand):
            return _UNARY[type(unary)](_number(operand, values))
        case ast.BoolOp(op=op, values=parts):
            return _evaluate_bool(isinstance(op, ast.And), parts, values)
        case ast.Compare():
            return _evaluate_comparison(node, values)
        case ast.Call(func=ast.Name(id=function), args=arguments):
            return _FUNCTIONS[function](*(_number(argument, values) for argument in arguments))
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


def _number(node: ast.expr, values: Mapping[str, Any]) -> Any:
    """The value of an operand; only numbers, because a string times a number can fill the memory."""
    value = _evaluate(node, values)
    if not isinstance(value, int | float):
        raise ExpressionError(f"{value!r} is not a number")
    return value


def _lookup(name: str, values: Mapping[str, Any]) -> Any:
    if name in values:
        return values[name]
    if name in _YAML_CONSTANTS:
        return _YAML_CONSTANTS[name]
    raise ExpressionError(f"{name} is not set here")
