"""What every test may use, and how tests are dealt out when several processes run them (`make test`)."""

import os
import random
import signal
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import pytest

# A busy machine is no failure: time decides no test. Nor does chance: every run draws the same examples,
# but for one that is asked to look for new ones (COREWISE_EXPLORE=1).
hypothesis.settings.register_profile(
    "corewise",
    deadline=None,
    derandomize=not os.environ.get("COREWISE_EXPLORE"),
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("corewise")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as shells start what runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # as nohup starts programs
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# JAX and TensorFlow make their threads once in a process; in those of the tests they have one.
os.environ.update({"PJRT_NPROC": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"})

REQUIRE_PARTS = "COREWISE_REQUIRE_PARTS"
# How tests are dealt out: those of a place below stay in one process under one name, the slow ones after it
# go one by one to the process that is free, and all others stay together by file.
TOGETHER = {
    "tests/bundle/": "a bundle, made and installed once",
    "tests/end_to_end/test_launch_slurm.py": "the daemons of Slurm",
    "tests/machine/test_slurm_live.py": "the daemons of Slurm",
}
ONE_BY_ONE = ("tests/end_to_end/",)
SET_BY_JOBS = ("_NUM_THREADS", "PJRT_NPROC", "COREWISE_PLANS", "TORCHINDUCTOR_CACHE_DIR")  # ends of names


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Deals tests out so that what some of them share is made once."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return share_of(nodeid)

    for place in (*TOGETHER, *ONE_BY_ONE):
        assert (config.rootpath / place).exists(), f"{place} has moved: mend {__file__}"
    config.option.loadscopereorder = False  # the slow folders come early by name
    return ByFile(config, log)


def share_of(nodeid: str) -> str:
    """The name of what one process runs together, this test among it."""
    for place, name in TOGETHER.items():
        if nodeid.startswith(place):
            return name
    return nodeid if nodeid.startswith(ONE_BY_ONE) else nodeid.partition("::")[0]


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
    base = tmp_path_factory.getbasetemp()
    monkeypatch.setenv("XDG_CACHE_HOME", str(base / "cache"))
    # The C++ executor takes long to build and its name tells all that it rests on: it outlives the session.
    lasting = next((one for one in base.parents if one.name.startswith("pytest-of-")), base)
    monkeypatch.setenv("COREWISE_NATIVE_CACHE", str(lasting / "corewise-native"))
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(autouse=True)
def _same_numbers_each_time(request: pytest.FixtureRequest) -> None:
    """Random numbers of a test are its own and the same in every run, whatever ran before it."""
    seed = zlib.crc32(request.node.nodeid.encode())
    random.seed(seed)
    numpy, torch = sys.modules.get("numpy.random"), sys.modules.get("torch")
    if numpy is not None:
        numpy.seed(seed)
    if torch is not None:
        torch.manual_seed(seed)


@pytest.fixture(autouse=True)
def _variables_as_before() -> Iterator[None]:
    """Commands and jobs in the tests' own process set variables; no later test inherits them."""

    def ours() -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if name.endswith(SET_BY_JOBS)}

    before = ours()
    yield
    for name in ours().keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture(autouse=True)
def _threads_as_before() -> Iterator[None]:
    """Jobs made in the tests' own process set torch's threads; the next test finds them as they were."""
    torch: Any = sys.modules.get("torch")
    before = torch.get_num_threads() if torch is not None else len(os.sched_getaffinity(0))
    yield
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() != before:
        torch.set_num_threads(before)
