"""Teams and quick plans for tests of changing widths."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from corewise.dataflow.malleable import Malleable, malleable  # noqa: E402


def pytest_collection_finish(session: pytest.Session) -> None:
    """Builds the C++ executor before the first test: no test's time limit then runs while it is built."""
    if not session.config.option.collectonly and any(
        Path(__file__).parent in one.path.parents for one in session.items
    ):
        from corewise.dataflow.native_executor import missing

        missing()


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


@pytest.fixture
def native(need: Callable[[bool, str], None]) -> None:
    """For tests that need the C++ executor."""
    from corewise.dataflow.native_executor import missing

    problem = missing()
    need(not problem, f"the C++ executor: {problem}")
