"""Fingerprints of what source code computes, independent of layout, comments and file names.

A fingerprint covers a file and the files that it imports from the same source tree. It is computed from
syntax trees without docstrings, comments, positions and module paths of that tree, and from C++ tokens
without comments. Reformatting or moving a file therefore changes no fingerprint.
"""

import ast
import hashlib
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

NATIVE_SUFFIXES = (".cpp", ".h")
_MODULE_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_TARGET = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+):[A-Za-z_]\w*")
_CPP_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
      | (?P<own_header>\#[ \t]*include[ \t]*"[^"\n]*")
      | (?P<token>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|\w+|[^\w\s])""",
    re.VERBOSE | re.DOTALL,
)
# Fields of syntax trees that do not affect what is computed.
_IGNORED_FIELDS = {"ctx", "kind", "type_comment", "type_ignores"}


@dataclass(frozen=True)
class SourceTree:
    """Modules below a folder of the import path; only those of `package` when it is set."""

    root: Path
    package: str = ""

    def find(self, module: str) -> Path | None:
        """Find the file of a module; None when it is not in this tree."""
        if self.package and module.split(".")[0] != self.package:
            return None
        base = self.root.joinpath(*module.split("."))
        return next((p for p in (base.with_suffix(".py"), base / "__init__.py") if p.is_file()), None)

    def collect_closure(self, start: Iterable[Path], borders: Collection[Path] = ()) -> set[Path]:
        """Collect these files and all that they import, directly or not, except `borders`."""
        files: set[Path] = set()
        waiting = list(start)
        while waiting:
            path = waiting.pop()
            if path not in files and path not in borders:
                files.add(path)
                waiting += self._find_imported_files(path)
        return files

    def find_targets(self, path: Path) -> set[Path]:
        """Find the files that a file names as `module:attribute`, which are loaded on demand."""
        named = _read_syntax(self, path, path.read_bytes()).targets
        return {file for file in map(self.find, named) if file is not None}

    def compute_fingerprint(self, files: Iterable[Path]) -> str:
        """Hash what these files compute, independent of their paths; empty modules are ignored."""
        digests = sorted(self._hash_file(path) for path in files)
        return _hash("\n".join(each for each in digests if each != _EMPTY_DIGEST).encode())

    def _find_imported_files(self, path: Path) -> Iterator[Path]:
        for module in _read_syntax(self, path, path.read_bytes()).modules:
            parts = module.split(".")
            # Importing a module runs the __init__.py of each package above it.
            for length in range(1, len(parts) + 1):
                found = self.find(".".join(parts[:length]))
                if found is not None:
                    yield found

    def _hash_file(self, path: Path) -> str:
        if path.suffix in NATIVE_SUFFIXES:
            return _hash_native(path)
        if path.suffix != ".py":
            return _hash(path.read_bytes())
        return _read_syntax(self, path, path.read_bytes()).digest

    def build_module_name(self, path: Path) -> str:
        """Build the dotted module name of a file."""
        relative = path.relative_to(self.root).with_suffix("")
        return ".".join(relative.parts[:-1] if relative.name == "__init__" else relative.parts)


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# The digest of a module that holds at most a docstring.
_EMPTY_DIGEST = _hash(b"\nModule()")


@dataclass(frozen=True)
class _Syntax:
    """The modules that a file imports, those that it names as `module:attribute`, and its digest."""

    modules: tuple[str, ...]
    targets: tuple[str, ...]
    digest: str


@lru_cache(maxsize=4096)
def _read_syntax(tree: SourceTree, path: Path, content: bytes) -> _Syntax:
    """Read the syntax of a file; a file that cannot be parsed is hashed as bytes."""
    try:
        parsed = ast.parse(content)
        reader = _Reader(tree, path)
        reader.note_imports(parsed)
        text = reader.describe(parsed)
    except (SyntaxError, ValueError, RecursionError):
        return _Syntax((), (), _hash(content))
    imports = "\n".join(sorted(reader.imports))
    digest = _hash(f"{imports}\n{text}".encode("utf-8", "replace"))
    return _Syntax(tuple(sorted(reader.modules)), tuple(sorted(reader.targets)), digest)


class _Reader:
    """Reads one syntax tree: its imports, and a text of everything else."""

    def __init__(self, tree: SourceTree, path: Path) -> None:
        self.tree = tree
        package = tree.build_module_name(path).split(".")
        self.package = package if path.name == "__init__.py" else package[:-1]
        self.modules: set[str] = set()
        self.targets: set[str] = set()
        self.imports: set[str] = set()
        # Local names of the tree's modules, each with its number in order of first use, or None before that.
        self.module_names: dict[str, int | None] = {}

    def note_imports(self, parsed: ast.AST) -> None:
        for node in ast.walk(parsed):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self._note_module(alias.name, alias.asname or alias.name.split(".")[0])
            elif isinstance(node, ast.ImportFrom):
                self._note_names(node)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and self.tree.package:
                self._note_text(node.value)

    def _note_text(self, text: str) -> None:
        """Note a module that is imported by its name in a text."""
        target = _TARGET.fullmatch(text)
        if target and self.tree.find(target[1]):
            self.targets.add(target[1])
        elif _MODULE_PATH.fullmatch(text) and self.tree.find(text):
            self.modules.add(text)

    def _note_module(self, module: str, local_name: str) -> None:
        if self.tree.find(module) is None:
            self.imports.add(f"import {module} as {local_name}")
        else:
            self.modules.add(module)
            self.module_names[local_name] = None

    def _note_names(self, node: ast.ImportFrom) -> None:
        above = self.package[: len(self.package) - node.level + 1] if node.level else []
        base = ".".join([*above, *([node.module] if node.module else [])])
        for alias in node.names:
            name = f"{base}.{alias.name}" if base else alias.name
            if self.tree.find(name) is not None:
                self._note_module(name, alias.asname or alias.name)
                continue
            is_ours = base and self.tree.find(base) is not None
            if is_ours:
                self.modules.add(base)
            self.imports.add(f"from {'' if is_ours else base} import {alias.name} as {alias.asname or ''}")

    def describe(self, value: object) -> str:
        """Describe a syntax tree as a text that is the same in every Python version."""
        if isinstance(value, list):
            return f"[{','.join(self.describe(each) for each in value if not _is_inert(each))}]"
        if isinstance(value, ast.Constant):
            return self._describe_constant(value.value)
        if isinstance(value, ast.Name) and value.id in self.module_names:
            number = self.module_names[value.id]
            if number is None:
                number = sum(each is not None for each in self.module_names.values())
                self.module_names[value.id] = number
            return f"module {number}"
        if not isinstance(value, ast.AST):
            return repr(value)
        fields = {
            name: self.describe(field)
            for name, field in ast.iter_fields(value)
            if name not in _IGNORED_FIELDS and field is not None
        }
        shown = ",".join(f"{name}={text}" for name, text in fields.items() if text != "[]")
        return f"{type(value).__name__}({shown})"

    def _describe_constant(self, value: object) -> str:
        """Describe a constant; module paths of this tree are replaced in strings."""
        if isinstance(value, str) and self.tree.package:
            value = re.sub(rf"\b{self.tree.package}(\.\w+)+", "module", value)
        return repr(value)


def _is_inert(node: object) -> bool:
    """Return True for docstrings, `pass` and imports, which are noted separately."""
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_text or isinstance(node, ast.Pass | ast.Import | ast.ImportFrom)


def _hash_native(path: Path) -> str:
    tokens = _CPP_TOKEN.finditer(path.read_text(encoding="utf-8"))
    return _hash(" ".join(each["token"] for each in tokens if each["token"]).encode())
