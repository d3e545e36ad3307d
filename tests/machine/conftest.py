from collections.abc import Callable
from pathlib import Path

import pytest
from tests.machine.sysfs_trees import Tree


@pytest.fixture
def make_tree(tmp_path: Path) -> Callable[[], Tree]:
    """Makes empty trees, each under its own root."""
    made: list[Tree] = []

    def make() -> Tree:
        root = tmp_path / f"root{len(made)}"
        root.mkdir()
        made.append(Tree(root))
        return made[-1]

    return make


@pytest.fixture
def tree(make_tree: Callable[[], Tree]) -> Tree:
    return make_tree()
