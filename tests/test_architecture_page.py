"""ARCHITECTURE.md and CONTRIBUTING.md name files and folders that exist, and every package."""

import re
from pathlib import Path

import pytest

import corewise

PACKAGE = Path(corewise.__file__).parent
ROOT = Path(__file__).parents[1]
PATH = re.compile(r"`([a-z_/]+(?:\.py|/))`")


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_every_path_exists(page: str) -> None:
    paths = set(PATH.findall((ROOT / page).read_text()))
    assert len(paths) > 5
    missing = [
        path for path in sorted(paths) if not (ROOT / path).exists() and not any(PACKAGE.rglob(path.rstrip("/")))
    ]
    assert missing == []


def test_every_package_has_a_row() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert {name for name in packages if f"| `{name}/` |" not in text} == set()
