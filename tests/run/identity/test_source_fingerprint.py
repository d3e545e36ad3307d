"""Fingerprints of sources depend only on what is computed."""

from pathlib import Path

import pytest

from corewise.run.identity.source_fingerprint import SourceTree

STEP = '''
"""Doubles."""
import math
from pkg.parts.helper import scale
from pkg.parts import limits

WARM = ("pkg.parts.helper", "pkg.parts.helper:scale")

def step(x):
    """One step."""
    return scale(x) + math.pi + limits.LARGEST  # the sum
'''
HELPER = "def scale(x):\n    return 2 * x\n"
LIMITS = "LARGEST = 7\n"


def write_tree(root: Path, files: dict[str, str]) -> SourceTree:
    for name, text in files.items():
        path = root / "pkg" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(text)
    return SourceTree(root, "pkg")


def fingerprint(root: Path, files: dict[str, str], start: str = "step.py") -> str:
    tree = write_tree(root, files)
    return tree.compute_fingerprint(tree.collect_closure([root / "pkg" / start]))


@pytest.fixture
def before(tmp_path: Path) -> str:
    return fingerprint(tmp_path / "before", {"step.py": STEP, "parts/helper.py": HELPER, "parts/limits.py": LIMITS})


def test_comments_docstrings_and_layout_change_no_fingerprint(tmp_path: Path, before: str) -> None:
    step = STEP.replace("# the sum", "").replace("One step.", "A step.").replace("x) +", "x) \\\n  +")
    helper = '"""Scales."""\ndef scale(\n    x\n):\n    # twice\n    return (2*x)\n'
    files = {"step.py": step, "parts/helper.py": helper, "parts/limits.py": LIMITS}
    assert step != STEP
    assert fingerprint(tmp_path, files) == before


def test_moved_and_renamed_modules_change_no_fingerprint(tmp_path: Path, before: str) -> None:
    step = STEP.replace("pkg.parts.helper", "pkg.scaling").replace(
        "from pkg.parts import limits", "from . import bounds"
    )
    files = {
        "inner/deep/step.py": step.replace("limits.", "bounds."),
        "scaling.py": HELPER,
        "inner/deep/bounds.py": LIMITS,
    }
    assert fingerprint(tmp_path, files, "inner/deep/step.py") == before


@pytest.mark.parametrize(
    "changed",
    [
        {"step.py": STEP.replace("math.pi", "math.e")},
        {"step.py": STEP.replace("import math", "import cmath as math")},
        {"step.py": STEP.replace("import scale", "import other as scale")},
        {"parts/helper.py": HELPER.replace("2", "3")},
        {"parts/limits.py": "LARGEST = 8\n"},
    ],
    ids=["own code", "another library", "another function", "helper", "constant of a module"],
)
def test_what_is_computed_changes_the_fingerprint(tmp_path: Path, before: str, changed: dict[str, str]) -> None:
    files = {"step.py": STEP, "parts/helper.py": HELPER, "parts/limits.py": LIMITS}
    assert fingerprint(tmp_path, files) == before
    assert fingerprint(tmp_path, files | changed) != before


def test_lazy_imports_and_modules_named_in_strings_are_followed(tmp_path: Path) -> None:
    step = "def step():\n    from pkg.lazy import run\n    return run()\n"
    step += "WARM = ('pkg.warm',)\nLATE = 'pkg.late:run'\n"
    tree = write_tree(tmp_path, {"step.py": step, "lazy.py": "run = 1\n", "warm.py": "", "late.py": ""})
    found = {path.name for path in tree.collect_closure([tmp_path / "pkg/step.py"])}
    assert found == {"__init__.py", "step.py", "lazy.py", "warm.py"}
    assert tree.find_targets(tmp_path / "pkg/step.py") == {tmp_path / "pkg/late.py"}


def test_borders_are_not_entered(tmp_path: Path) -> None:
    tree = write_tree(tmp_path, {"step.py": "import pkg.registry\n", "registry.py": "import pkg.all\n", "all.py": ""})
    found = tree.collect_closure([tmp_path / "pkg/step.py"], {tmp_path / "pkg/registry.py"})
    assert {path.name for path in found} == {"__init__.py", "step.py"}


def test_comments_white_space_and_header_names_of_cpp_are_ignored(tmp_path: Path) -> None:
    tree = SourceTree(tmp_path)
    texts = (
        '#include "lanes.h"\nint f(int a) { return a+1; } // one more\n',
        '#include "width.h"\n/* one\n more */ int f( int a )\n{\n  return a + 1;\n}\n',
        '#include "lanes.h"\nint f(int a) { return a+2; }\n',
        '#include "lanes.h"\nint f(int a) { return "// one" + 1; }\n',
    )
    found = []
    for text in texts:
        (tmp_path / "f.cpp").write_text(text)
        found.append(tree.compute_fingerprint([tmp_path / "f.cpp"]))
    assert found[0] == found[1]
    assert len(set(found)) == 3


def test_a_file_that_cannot_be_parsed_is_hashed_as_bytes(tmp_path: Path) -> None:
    assert fingerprint(tmp_path, {"step.py": "def (:\n"}) != fingerprint(tmp_path, {"step.py": "def ):\n"})
