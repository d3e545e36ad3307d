"""Read the nodes of an exported graph.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, List


def get_value(node: Any) -> Any:
    """Return a node's value, which has no data."""
    return node.meta["val"]


def is_mutating(node: Any) -> bool:
    """Return whether the node writes to its arguments."""
    schema = getattr(node.target, "_schema", None)
    return node.op == "call_function" and schema is not None and schema.is_mutable


def get_arguments(node: Any, num: int) -> List[Any]:
    """Return all arguments, including defaults."""
    rest = node.target._schema.arguments[len(node.args) : num]
    return [*node.args, *(node.kwargs.get(one.name, one.default_value) for one in rest)][:num]
