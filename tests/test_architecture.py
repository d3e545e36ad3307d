"""The two sides share only files: these tests restrict imports of packages and frameworks."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from corewise.launch.worker_archive import MEASURED_FOLDERS, PACKAGE, build_worker, list_measured_sources

FRAMEWORKS = {"torch", "tensorflow", "jax", "cupy", "mpi4py"}
FRAMEWORK_FOLDERS = ("measured/runtimes/", "accelerate/")
IMAGE_FILES = {
    "measured/runtimes/torch/modules/images.py",
    "accelerate/batching/image_dataset.py",
    "accelerate/batching/image_generator.py",
}
ALL_FILES = sorted(p.relative_to(PACKAGE) for p in PACKAGE.rglob("*.py"))

# The packages that each package may import besides itself. The order is that of the architecture: a package
# imports only packages above it, so there is no cycle.
LEAVES = {
    *("errors", "cache_folder", "owned_files", "process_control", "progress", "shared_cores", "text_format"),
    "trusted_paths",
}
ALLOWED_IMPORTS = {
    "cluster": set(),
    "accelerate": set(),
    "measured": {"accelerate", "cluster"},
    "stats": set(),
    "machine": {"measured", "cluster"},
    "study": {"measured", "machine"},
    "store": {"measured", "study", "stats"},
    "launch": {"accelerate", "measured", "machine", "study", "cluster"},
    "run": {"accelerate", "measured", "machine", "study", "stats", "store", "launch", "cluster"},
    "analysis": {"measured", "machine", "study", "stats", "store"},
    "report": {"measured", "machine", "study", "stats", "store", "analysis"},
    "explain": {"measured", "machine", "study", "store", "launch", "run", "analysis", "report"},
    "shapes": {"accelerate", "study", "report"},
    "tuning": {"measured", "machine", "study", "stats", "store", "launch", "run", "analysis", "report"},
    "bundle": {"study", "store", "machine"},
    "submit": {"measured", "study", "store", "run"},
}
# Inside the measured side: what is computed does not know with what.
MEASURED_IMPORTS = {
    "workloads": {"runtimes.base", "runtimes.communication", "parameters", "trial", "cache_sizes"},
    "probes": {"pinning", "sysfs"},
}


def imported_modules(path: Path) -> set[str]:
    """Return every module that a file imports, at any depth."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((PACKAGE / path).read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names if node.module.startswith("corewise")}
    return found


def own_imports(path: Path) -> set[str]:
    return {name.removeprefix("corewise.") for name in imported_modules(path) if name.startswith("corewise.")}


@pytest.mark.parametrize("path", ALL_FILES, ids=str)
def test_only_runtimes_import_a_framework(path: Path) -> None:
    if not str(path).startswith(FRAMEWORK_FOLDERS):
        assert not {name.split(".")[0] for name in imported_modules(path)} & FRAMEWORKS


@pytest.mark.parametrize("path", list_measured_sources(), ids=str)
def test_the_measured_side_needs_only_the_standard_library_numpy_and_its_framework(path: Path) -> None:
    allowed = {"corewise", "numpy"}
    if path.parts[:2] == ("measured", "runtimes") and len(path.parts) > 3:
        allowed.add(path.parts[2])
    if path.parts[0] == "accelerate":
        allowed.add("torch")
    if str(path) in IMAGE_FILES:
        allowed.add("PIL")
    roots = {name.split(".")[0] for name in imported_modules(path)}
    assert roots - set(sys.stdlib_module_names) - allowed - {"__future__"} == set()


@pytest.mark.parametrize("path", list_measured_sources(), ids=str)
def test_the_measured_side_is_written_for_python_3_9(path: Path) -> None:
    source = (PACKAGE / path).read_text()
    tree = ast.parse(source, feature_version=(3, 9))
    uses_annotations = any(isinstance(n, (ast.AnnAssign, ast.FunctionDef)) for n in ast.walk(tree))
    assert not uses_annotations or "from __future__ import annotations" in source


@pytest.mark.parametrize("path", list_measured_sources(), ids=str)
def test_the_measured_side_never_imports_the_control_side(path: Path) -> None:
    travelling = {str(p.with_suffix("")).replace("/", ".") for p in list_measured_sources()}
    folders = {".".join(name.split(".")[:-1]) for name in travelling} | set(MEASURED_FOLDERS)
    for name in own_imports(path):
        parent = name.rpartition(".")[0]
        assert name in travelling or parent in travelling or name in folders or name == "__version__", name


@pytest.mark.parametrize("path", [p for p in ALL_FILES if p.parts[0] in ALLOWED_IMPORTS], ids=str)
def test_packages_import_only_packages_above_them(path: Path) -> None:
    folder = path.parts[0]
    allowed = ALLOWED_IMPORTS[folder] | LEAVES | {folder, "__version__"}
    assert {name.split(".")[0] for name in own_imports(path)} - allowed == set()


def test_packages_have_no_import_cycle() -> None:
    seen = set(LEAVES)
    for folder, imports in ALLOWED_IMPORTS.items():
        assert imports <= seen, f"{folder} may import a package below it"
        seen.add(folder)
    assert {p.parts[0] for p in ALL_FILES if len(p.parts) > 1} == {*ALLOWED_IMPORTS, "cli"}


@pytest.mark.parametrize(
    "path", [p for p in list_measured_sources() if len(p.parts) > 2 and p.parts[1] in MEASURED_IMPORTS], ids=str
)
def test_workloads_and_probes_do_not_know_the_runtimes(path: Path) -> None:
    folder = path.parts[1]
    allowed = {f"measured.{name}" for name in (*MEASURED_IMPORTS[folder], folder)} | LEAVES
    for name in own_imports(path) - {"measured"}:
        assert any(name == ok or name.startswith(ok + ".") for ok in allowed), name


@pytest.mark.parametrize("folder", sorted({p.parent for p in ALL_FILES}), ids=str)
def test_no_folder_holds_more_than_twenty_modules(folder: Path) -> None:
    assert len([p for p in ALL_FILES if p.parent == folder and p.name != "__init__.py"]) <= 20


@pytest.mark.parametrize("arguments", [["--help"], ["doctor", "--json"], ["list", "--json"]], ids=" ".join)
def test_the_control_side_loads_no_framework(arguments: list[str]) -> None:
    code = (
        "import sys, json\n"
        "from corewise.cli.app import build_app\n"
        f"try: build_app()({arguments!r})\nexcept SystemExit: pass\n"
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
        "import corewise.measured.worker.zygote, corewise.measured.workloads.registry\n"
        "print(corewise.__file__, *sorted(m for m in sys.modules if '.' not in m))"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code, str(worker)], capture_output=True, text=True, check=True)
    where, *loaded = done.stdout.split()
    assert where.startswith(str(worker))
    assert not set(loaded) & {"pydantic", "typer", "rich", "yaml", "duckdb", "scipy", *FRAMEWORKS}


def test_equal_sources_build_the_same_worker(tmp_path: Path) -> None:
    first, second = build_worker(tmp_path / "a"), build_worker(tmp_path / "b")
    assert first.name == second.name
    assert first.read_bytes() == second.read_bytes()


def test_programs_that_corewise_starts_import_nothing_from_the_working_directory() -> None:
    """With -m, Python looks for modules there first, unless -P forbids it. The folder may belong to someone else."""
    payload = [PACKAGE / "bundle/payload" / name for name in ("selftest.sh", "corewise.def")]
    text = "".join(path.read_text() for path in (*(PACKAGE / path for path in ALL_FILES), *payload))
    starts = re.findall(r'(?:executable|bin/python"?\)?),? (?:"-P", |-P )?"?-m\b', text)
    assert len(starts) >= 8
    assert [start for start in starts if "-P" not in start] == []
