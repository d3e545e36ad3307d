"""Teams and quick plans for tests of changing widths."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from corewise.dataflow.malleable import Malleable, malleable  # noqa: E402


@pytest.fixture
def planned() -> Iterator[Callable[..., Malleable]]:
    """Makes models that run by a plan whatever it costs, on Python threads, and closes them."""
    made: list[Malleable] = []

    def make(model: Any, inputs: Any = None, **options: Any) -> Malleable:
        settings = {"executor": "python", "planning_s": 0.05, "keep": False, "run": "planned", **options}
        made.append(malleable(model, inputs, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture(scope="session")
def native_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache for the C++ executor that outlives the session: it takes long to build."""
    base = tmp_path_factory.getbasetemp()
    return next((one for one in base.parents if one.name.startswith("pytest-of-")), base) / "corewise-native"


@pytest.fixture(scope="session")
def native_problem(native_folder: Path) -> str:
    """Why there is no C++ executor here; building it on the way where there is one."""
    from corewise.dataflow.native_executor import missing

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(native_folder))
        return missing()


@pytest.fixture
def native(native_problem: str, need: Callable[[bool, str], None]) -> None:
    """For tests that need the C++ executor."""
    need(not native_problem, f"the C++ executor: {native_problem}")
