"""The two sides meet only in files: who may import whom, and what may be loaded where."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from corewise.launcher.measured_side import MEASURED_FOLDERS, PACKAGE, build_worker, measured_sources

FRAMEWORKS = {"torch", "tensorflow", "jax", "cupy", "mpi4py"}
FRAMEWORK_FOLDERS = ("runtimes/", "dataflow/", "batching/")
IMAGE_FILES = {"runtimes/torch/images.py"}
ALL_FILES = sorted(p.relative_to(PACKAGE) for p in PACKAGE.rglob("*.py"))

# Each folder of the control side, with the folders it may import besides itself and the shared nouns.
CONTROL_IMPORTS = {
    "spec": {"workloads", "runtimes"},
    "machine": {"spec"},
    "stats": set(),
    "store": {"spec", "stats"},
    "launcher": {"spec", "machine", "worker", "dataflow"},
    "engine": {"spec", "machine", "launcher", "stats", "store", "workloads", "worker"},
    "tuner": {"spec", "machine", "launcher", "stats", "store", "engine", "workloads", "report", "progress"},
    "bundle": {"spec", "store"},
    "breakdown": {"spec", "machine", "report", "workloads"},
    "report": {"spec", "stats", "store"},
    "comparison": {"spec", "stats", "store", "report", "workloads"},
    "cli": {
        "breakdown",
        "bundle",
        "comparison",
        "report",
        "spec",
        "machine",
        "launcher",
        "stats",
        "store",
        "engine",
        "workloads",
        "tuner",
    },
}
MEASURED_IMPORTS = {
    "worker": {"spec.trial", "machine.pinning", "probes", "runtimes", "workloads"},
    "runtimes": {"spec.trial", "machine.pinning", "probes", "workloads", "dataflow"},
    "workloads": {"runtimes.base"},
    "probes": {"machine.pinning"},
    "dataflow": {"machine.pinning"},
}


def imported_modules(path: Path) -> set[str]:
    """Every module a file names in an import, at any depth."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((PACKAGE / path).read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module)
            found |= {
                f"{node.module}.{alias.name}" for alias in node.names if node.module.startswith("corewise")
            }
    return found


def own_imports(path: Path) -> set[str]:
    return {name.removeprefix("corewise.") for name in imported_modules(path) if name.startswith("corewise.")}


@pytest.mark.parametrize("path", ALL_FILES, ids=str)
def test_only_runtimes_import_a_framework(path: Path) -> None:
    if not str(path).startswith(FRAMEWORK_FOLDERS):
        assert not {name.split(".")[0] for name in imported_modules(path)} & FRAMEWORKS


@pytest.mark.parametrize("path", measured_sources(), ids=str)
def test_the_measured_side_needs_only_the_standard_library_numpy_and_its_framework(path: Path) -> None:
    allowed = {"corewise", "numpy"}
    if path.parts[0] == "runtimes" and len(path.parts) > 2:
        allowed.add(path.parts[1])
    if path.parts[0] == "dataflow":
        allowed.add("torch")
    if str(path) in IMAGE_FILES:
        allowed.add("PIL")
    roots = {name.split(".")[0] for name in imported_modules(path)}
    assert roots - set(sys.stdlib_module_names) - allowed - {"__future__"} == set()


@pytest.mark.parametrize("path", measured_sources(), ids=str)
def test_the_measured_side_is_written_for_python_3_9(path: Path) -> None:
    source = (PACKAGE / path).read_text()
    tree = ast.parse(source, feature_version=(3, 9))
    uses_annotations = any(isinstance(n, (ast.AnnAssign, ast.FunctionDef)) for n in ast.walk(tree))
    assert not uses_annotations or "from __future__ import annotations" in source


@pytest.mark.parametrize("path", measured_sources(), ids=str)
def test_the_measured_side_never_imports_the_control_side(path: Path) -> None:
    travelling = {str(p.with_suffix("")).replace("/", ".") for p in measured_sources()}
    folders = {".".join(name.split(".")[:-1]) for name in travelling} | set(MEASURED_FOLDERS)
    for name in own_imports(path):
        parent = name.rpartition(".")[0]
        assert name in travelling or parent in travelling or name in folders or name == "__version__", name


@pytest.mark.parametrize("path", [p for p in ALL_FILES if p.parts[0] in CONTROL_IMPORTS], ids=str)
def test_control_side_imports_point_one_way(path: Path) -> None:
    folder = path.parts[0]
    if path in measured_sources():
        return
    allowed = CONTROL_IMPORTS[folder] | {folder, "__version__"}
    assert {name.split(".")[0] for name in own_imports(path)} - allowed == set()


@pytest.mark.parametrize("path", [p for p in measured_sources() if p.parts[0] in MEASURED_IMPORTS], ids=str)
def test_measured_side_imports_point_one_way(path: Path) -> None:
    allowed = MEASURED_IMPORTS[path.parts[0]] | {path.parts[0]}
    for name in own_imports(path):
        if name.split(".")[0] in {"spec", "machine"} and "." not in name:
            continue  # `from corewise.machine import pinning` names both
        assert any(name == ok or name.startswith(ok + ".") for ok in allowed), name


@pytest.mark.parametrize("words", [["--help"], ["doctor", "--json"], ["list", "--json"]], ids=" ".join)
def test_the_control_side_loads_no_framework(words: list[str]) -> None:
    code = (
        "import sys, json\n"
        "from corewise.cli.main import app\n"
        f"try: app({words!r})\nexcept SystemExit: pass\n"
        "print('LOADED', json.dumps(sorted(m for m in sys.modules if '.' not in m)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = json.loads(done.stdout.rpartition("LOADED ")[2])
    assert "typer" in loaded
    assert not set(loaded) & FRAMEWORKS


def test_the_worker_runs_alone_without_the_control_sides_libraries(tmp_path: Path) -> None:
    worker = build_worker(tmp_path)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import corewise.worker.zygote, corewise.workloads.registry\n"
        "print(corewise.__file__, *sorted(m for m in sys.modules if '.' not in m))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, str(worker)], capture_output=True, text=True, check=True
    )
    where, *loaded = done.stdout.split()
    assert where.startswith(str(worker))
    assert not set(loaded) & {"pydantic", "typer", "rich", "yaml", "duckdb", "scipy", *FRAMEWORKS}


def test_equal_sources_build_the_same_worker(tmp_path: Path) -> None:
    first, second = build_worker(tmp_path / "a"), build_worker(tmp_path / "b")
    assert first.name == second.name
    assert first.read_bytes() == second.read_bytes()
