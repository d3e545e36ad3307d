"""What every test may use."""

import os
from collections.abc import Callable

import pytest

REQUIRE_PARTS = "COREWISE_REQUIRE_PARTS"


@pytest.fixture
def need() -> Callable[[bool, str], None]:
    """Skips with the reason when a system part is missing; fails instead where parts are required."""

    def check(present: bool, reason: str) -> None:
        if present:
            return
        if os.environ.get(REQUIRE_PARTS):
            pytest.fail(f"required here: {reason}")
        pytest.skip(reason)

    return check


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps what tests build out of the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
