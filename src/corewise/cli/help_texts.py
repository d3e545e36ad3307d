"""Help as typer draws it, from docstrings wrapped for the source: paragraphs and examples made whole."""

import inspect
import re
from collections.abc import Iterable
from typing import Any

_INDENT = "  "


def drawn(text: str) -> str:
    """A docstring with each paragraph on one line, for typer keeps line breaks, and the examples together."""
    first, *rest = inspect.cleandoc(text).split("\n\n")
    parts: list[str] = []
    for paragraph in filter(None, rest):
        if paragraph.startswith(_INDENT) and parts:
            parts[-1] += f"\n{paragraph.rstrip()}"
        else:
            parts.append(_unwrapped(paragraph))
    # An empty part first: typer would take the indentation away where only examples follow.
    return "\n\n".join((_unwrapped(first), "", *parts)) if parts else _unwrapped(first)


def _unwrapped(paragraph: str) -> str:
    """The paragraph on one line, but for examples that already stand below its first one."""
    return re.sub(rf" *\n(?!{_INDENT})", " ", paragraph.strip())


def without_types_of_flags(params: Iterable[Any]) -> None:
    """Flags take no value: `--json`, not `--json <bool>`."""
    for param in params:
        if getattr(param, "is_flag", False) and param.metavar is None:
            param.metavar = ""
