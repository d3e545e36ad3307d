"""Change one place of the source at a time and see whether a test notices: the mutation score.

Mutants of `corewise.store` and `corewise.stats` are drawn at random with a seed. Each one runs the tests that
execute its module, from a copy of the source. A mutant on a line that no test executes survives. Needs the package
`coverage`, which is no dependency of Corewise: `pip install coverage`.
"""

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from measuring import write_figures

ROOT = Path(__file__).parents[1]
PACKAGES = ("store", "stats")
# A mutant that loops for ever counts as noticed.
LIMIT_S = 120
COMPARISONS: Mapping[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: Mapping[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
}


@dataclass(frozen=True)
class Mutant:
    """One changed place: the file, its line, what was changed, and the number of the change in the file."""

    file: str
    line: int
    change: str
    number: int


class Mutator(ast.NodeTransformer):
    """Counts the possible changes of a module and applies the one with the given number."""

    def __init__(self, chosen: int = -1) -> None:
        self.chosen = chosen
        self.changes: list[tuple[int, str]] = []

    def _choose(self, node: ast.AST, change: str) -> bool:
        self.changes.append((getattr(node, "lineno", 0), change))
        return len(self.changes) - 1 == self.chosen

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        for index, operator in enumerate(node.ops):
            other = COMPARISONS[type(operator)]
            if self._choose(node, f"{type(operator).__name__} to {other.__name__}"):
                node.ops[index] = other()
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        other = OPERATORS.get(type(node.op))
        if other is not None and self._choose(node, f"{type(node.op).__name__} to {other.__name__}"):
            node.op = other()
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        if self._choose(node, "and to or, or or to and"):
            node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        if self._choose(node, f"{type(node.op).__name__} removed"):
            return node.operand
        return node

    def visit_If(self, node: ast.If) -> ast.AST:
        self.generic_visit(node)
        if self._choose(node, "condition negated"):
            node.test = ast.UnaryOp(ast.Not(), node.test)
        return node

    def visit_Return(self, node: ast.Return) -> ast.AST:
        self.generic_visit(node)
        if node.value is not None and self._choose(node, "returns None"):
            node.value = ast.Constant(None)
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        # Docstrings and the bodies of protocols do nothing.
        if isinstance(node.value, ast.Constant):
            return node
        self.generic_visit(node)
        return ast.Pass() if self._choose(node, "statement removed") else node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, bool):
            return ast.Constant(not node.value) if self._choose(node, "bool negated") else node
        if isinstance(node.value, int | float) and self._choose(node, "number plus 1"):
            return ast.Constant(node.value + 1)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        # Decorators and annotations are left alone.
        node.args.defaults = [self.visit(default) for default in node.args.defaults]
        node.body = [self.visit(each) for each in node.body]
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        # Formats within texts are no behaviour that a test should pin.
        return node


def list_mutants(files: Sequence[Path]) -> list[Mutant]:
    """List every possible mutant of the files."""
    mutants = []
    for file in files:
        mutator = Mutator()
        mutator.visit(ast.parse(file.read_text()))
        name = str(file.relative_to(ROOT / "src"))
        mutants += [Mutant(name, line, change, number) for number, (line, change) in enumerate(mutator.changes)]
    return mutants


def map_tests(folder: Path) -> dict[str, dict[int, set[str]]]:
    """Run the fast tests once under coverage; return for each file and line the tests that execute it."""
    settings = folder / "coveragerc"
    sources = ", ".join(f"corewise.{package}" for package in PACKAGES)
    settings.write_text(
        f"[run]\nsource = {sources}\ndynamic_context = test_function\ndata_file = {folder / 'coverage'}\n"
    )
    command = [sys.executable, "-m", "coverage", "run", f"--rcfile={settings}", "-m", "pytest", *list_test_options()]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"the tests fail without a mutant:\n{result.stdout[-3000:]}{result.stderr[-2000:]}")
    import coverage

    data = coverage.CoverageData(str(folder / "coverage"))
    data.read()
    lines: dict[str, dict[int, set[str]]] = {}
    for file in data.measured_files():
        contexts = data.contexts_by_lineno(file)
        lines[str(Path(file).relative_to(ROOT / "src"))] = {line: {*names} - {""} for line, names in contexts.items()}
    return lines


def list_test_options() -> list[str]:
    """List pytest's arguments for all tests of the packages."""
    return ["-n0", "-q", "-m", "not slow", "-p", "no:cacheprovider", *(f"tests/{package}" for package in PACKAGES)]


def find_node_ids() -> dict[str, str]:
    """Map a test's name as coverage writes it to its place for pytest."""
    command = [sys.executable, "-m", "pytest", "--collect-only", *list_test_options()]
    text = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = {}
    for test_file in sorted({line.partition(":")[0] for line in text.splitlines() if line.startswith("tests/")}):
        for node in ast.walk(ast.parse((ROOT / test_file).read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
                found[f"{Path(test_file).stem}.{node.name}"] = f"{test_file}::{node.name}"
    return found


def choose_tests(
    mutant: Mutant, lines: Mapping[str, Mapping[int, set[str]]], nodes: Mapping[str, str]
) -> list[list[str]]:
    """Choose the tests to run, one list after the other until one fails; none if no test executes the line.

    First come the tests that are known to execute the line. Then come all test files that execute its module,
    because coverage does not see every test that Hypothesis calls.
    """
    by_line = lines.get(mutant.file, {})
    if mutant.line not in by_line:
        return []
    exact = _find_places(by_line[mutant.line], nodes)
    files = {place.partition("::")[0] for names in by_line.values() for place in _find_places(names, nodes)}
    module = Path(mutant.file)
    named = f"tests/{module.parts[1]}/test_{module.stem}.py"
    if (ROOT / named).exists():
        files.add(named)
    return [sorted(each) for each in (exact, files or {f"tests/{module.parts[1]}"}) if each]


def _find_places(names: Iterable[str], nodes: Mapping[str, str]) -> set[str]:
    return {nodes[key] for name in names if (key := ".".join(name.split(".")[-2:])) in nodes}


def try_mutant(
    lines: Mapping[str, Mapping[int, set[str]]], nodes: Mapping[str, str], folder: Path, mutant: Mutant
) -> str:
    """Return "killed", "survived" or "not covered"."""
    choices = choose_tests(mutant, lines, nodes)
    if not choices:
        return "not covered"
    with tempfile.TemporaryDirectory(dir=folder) as place:
        source = Path(place) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        target = source / mutant.file
        tree = Mutator(mutant.number).visit(ast.parse(target.read_text()))
        target.write_text(ast.unparse(ast.fix_missing_locations(tree)))
        if any(not _do_tests_pass(tests, source) for tests in choices):
            return "killed"
    return "survived"


def _do_tests_pass(tests: Sequence[str], source: Path) -> bool:
    env = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    options = ["-x", "-n0", "-q", "-m", "not slow", "-p", "no:cacheprovider", f"--basetemp={source.parent}/tmp"]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    try:
        return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, timeout=LIMIT_S).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def iterate_files() -> Iterator[Path]:
    """Yield the source files that are mutated."""
    for package in PACKAGES:
        yield from sorted((ROOT / "src" / "corewise" / package).rglob("*.py"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutants", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    args = parser.parse_args()
    possible = list_mutants(list(iterate_files()))
    mutants = random.Random(args.seed).sample(possible, min(args.mutants, len(possible)))
    with tempfile.TemporaryDirectory(prefix="corewise-mutants-") as name:
        folder = Path(name)
        lines, nodes = map_tests(folder), find_node_ids()
        outcomes: list[str] = []
        with ThreadPoolExecutor(args.processes) as pool:
            for mutant, outcome in zip(
                mutants, pool.map(partial(try_mutant, lines, nodes, folder), mutants), strict=True
            ):
                outcomes.append(outcome)
                if outcome != "killed":
                    print(f"{outcome}: {mutant.file}:{mutant.line}: {mutant.change}", flush=True)
    counts = Counter(outcomes)
    print(
        f"{len(mutants)} of {len(possible)} mutants: {json.dumps(counts)}; score {counts['killed'] / len(mutants):.1%}"
    )
    rows = [{**asdict(mutant), "outcome": outcome} for mutant, outcome in zip(mutants, outcomes, strict=True)]
    write_figures(args.out, num_possible=len(possible), seed=args.seed, counts=dict(counts), mutants=rows)


if __name__ == "__main__":
    main()
