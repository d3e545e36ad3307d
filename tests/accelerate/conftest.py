"""Fixtures for tests of `corewise.accelerate`."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.measured.runtimes.conftest import alone as alone
from tests.measured.runtimes.conftest import params as params
from tests.measured.runtimes.conftest import torch_left_as_found as torch_left_as_found
from tests.measured.runtimes.conftest import write as write

from corewise.accelerate.malleable.module_wrapper import Malleable, malleable


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build the C++ executor before the first test, outside of any test's time limit."""
    if not session.config.option.collectonly and any(
        Path(__file__).parent in one.path.parents for one in session.items
    ):
        from corewise.accelerate.malleable.execute.cpp_executor import explain_missing_native

        explain_missing_native()


@pytest.fixture
def planned() -> Iterator[Callable[..., Malleable]]:
    """Build models that always run a plan, on Python threads, and close them afterwards."""
    models: list[Malleable] = []

    def make(model: Any, inputs: Any = None, **options: Any) -> Malleable:
        settings = {"executor": "python", "planning_s": 0.05, "keep": False, "run": "planned", **options}
        models.append(malleable(model, inputs, **settings))
        return models[-1]

    yield make
    for model in models:
        model.close()


@pytest.fixture
def native(need: Callable[[bool, str], None]) -> None:
    """Require the C++ executor."""
    from corewise.accelerate.malleable.execute.cpp_executor import explain_missing_native

    problem = explain_missing_native()
    need(not problem, f"the C++ executor: {problem}")


@pytest.fixture
def prepare_all_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prepare layers and keep graphs whatever the clock says, so that no test depends on timing."""
    monkeypatch.setattr("corewise.accelerate.freeze.prepared_tree.MAX_TIME_RATIO", 1e9)
    monkeypatch.setattr("corewise.accelerate.freeze.captured_forward.MAX_TIME_RATIO", 1e9)
    monkeypatch.setattr("corewise.accelerate.freeze.captured_graph.MAX_TIME_RATIO", 1e9)
