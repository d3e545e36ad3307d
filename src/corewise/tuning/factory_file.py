"""Read the file of a factory without running it: does it define the function, and what does it import?"""

import ast
from collections.abc import Iterator
from pathlib import Path

from corewise.errors import UserError, suggest_nearest


def require_factory(file: Path, factory: str) -> None:
    """Raise UserError if the file cannot be parsed, or if it defines no function of that name.

    A file that may define names in other ways, by `from x import *` or `globals()`, is accepted.
    """
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except (SyntaxError, ValueError) as problem:
        line = f", line {problem.lineno}" if isinstance(problem, SyntaxError) and problem.lineno else ""
        text = problem.msg if isinstance(problem, SyntaxError) else str(problem)
        raise UserError(f"{file}{line}: {text}") from None
    except OSError as problem:
        raise UserError(f"{file} cannot be read: {problem.strerror}") from None
    names = set(_list_names(tree.body))
    if factory in names or "*" in names or "__getattr__" in names or _uses_globals(tree):
        return
    known = sorted(_list_functions(tree.body)) or sorted(names)
    hint = suggest_nearest(factory, known) if known else "it defines none"
    raise UserError(f"{file}:{factory}: the file defines no function {factory!r}; {hint}")


def list_imports(file: Path) -> tuple[str, ...]:
    """List what a file imports from installed packages, as MODULE or MODULE:NAME; none if it cannot be parsed.

    Modules in the folder of the file are the user's own code and left out.
    """
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except (SyntaxError, ValueError, OSError):
        return ()
    imports: dict[str, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports.update((each.name, None) for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [each.name for each in node.names if each.name != "*"]
            imports.update((f"{node.module}:{name}", None) for name in names)
    return tuple(each for each in imports if not _is_local(each, file.parent))


def _is_local(name: str, folder: Path) -> bool:
    package = name.partition(":")[0].partition(".")[0]
    return (folder / f"{package}.py").exists() or (folder / package).is_dir()


def _list_names(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the names that statements of a module may define, in all branches."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((each.asname or each.name).partition(".")[0] for each in node.names)
        else:
            for part in ast.walk(node):
                if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                    yield part.id
                elif isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    yield part.name
                elif isinstance(part, ast.Import | ast.ImportFrom):
                    yield from ((each.asname or each.name).partition(".")[0] for each in part.names)


def _list_functions(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the public functions at the top of a module."""
    for node in body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield node.name


def _uses_globals(tree: ast.Module) -> bool:
    return any(isinstance(each, ast.Name) and each.id in ("globals", "exec", "vars") for each in ast.walk(tree))
