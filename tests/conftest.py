"""What every test may use, and how tests are dealt out when several processes run them (`make test`)."""

import os
import signal
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest

# A busy machine is no failure: time decides no test.
hypothesis.settings.register_profile(
    "corewise", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("corewise")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as shells start what runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)

REQUIRE_PARTS = "COREWISE_REQUIRE_PARTS"
EACH_FOR_ITSELF = ("tests/end_to_end/", "tests/test_docs.py")  # slow, and sharing nothing
TOGETHER = ("tests/bundle/", "tests/end_to_end/test_launch_slurm.py", "tests/machine/test_slurm_live.py")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Deals tests out by file, so that what a file's tests share is made once; slow ones one by one."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return share_of(nodeid)

    config.option.loadscopereorder = False  # the slow folders come early by name
    return ByFile(config, log)


def share_of(nodeid: str) -> str:
    """What is run by one process together with this test."""
    together = next((place for place in TOGETHER if nodeid.startswith(place)), None)
    if together is not None:
        return "slurm" if "slurm" in together else together
    return nodeid if nodeid.startswith(EACH_FOR_ITSELF) else nodeid.partition("::")[0]


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
def own_surroundings(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps what tests build out of the user's cache, and the user's terminal out of the tests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.delenv("COLUMNS", raising=False)
