"""Lay out help texts: paragraphs first, the examples last with one per line."""

import inspect
import re
from collections.abc import Iterable
from typing import Any

_INDENT = "  "
_EXAMPLES = "Examples:"


def unwrap_docstring(text: str) -> str:
    """Return a docstring with each paragraph on one line and the examples together.

    Typer keeps line breaks, so a docstring must not contain those of the source.
    """
    first, *rest = inspect.cleandoc(text).split("\n\n")
    parts: list[str] = []
    for paragraph in filter(None, rest):
        if paragraph.startswith(_INDENT) and parts:
            parts[-1] += f"\n{paragraph.rstrip()}"
        else:
            parts.append(_unwrap(paragraph))
    # Without an empty first part, typer removes the indentation if only examples follow.
    return "\n\n".join((_unwrap(first), "", *parts)) if parts else _unwrap(first)


def split_examples(text: str) -> tuple[str, str]:
    """Split an unwrapped docstring into its description and its examples (empty if it has none)."""
    description, heading, examples = text.partition(f"\n\n{_EXAMPLES}\n")
    # Typer keeps the indentation of the examples only if an empty line precedes their heading.
    return description.rstrip(), f"\n{_EXAMPLES}\n{examples}" if heading else ""


def _unwrap(paragraph: str) -> str:
    """Join the lines of a paragraph, except examples that already follow its first line."""
    return re.sub(rf" *\n(?!{_INDENT})", " ", paragraph.strip())


def hide_flag_types(params: Iterable[Any]) -> None:
    """Show flags as `--json`, not as `--json <bool>`: they take no value."""
    for param in params:
        if getattr(param, "is_flag", False) and param.metavar is None:
            param.metavar = ""
