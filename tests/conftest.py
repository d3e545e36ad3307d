"""Fixtures for every test, and the distribution of tests over several processes (`make test`)."""

import os
import random
import signal
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

# Time decides no test, so a busy machine is no failure. Every run draws the same examples, unless
# COREWISE_EXPLORE=1 asks for new ones.
hypothesis.settings.register_profile(
    "corewise",
    deadline=None,
    derandomize=not os.environ.get("COREWISE_EXPLORE"),
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("corewise")

# Shells start background jobs with SIGINT ignored, and nohup starts programs with SIGHUP ignored.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# JAX and TensorFlow create their threads once per process; in tests they have one.
os.environ.update({"PJRT_NPROC": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"})

REQUIRE_PARTS = "COREWISE_REQUIRE_PARTS"
# The user id of `nobody`, who stands for any other user.
STRANGER = 65534
# The distribution of tests: those of the paths below share one process, the slow folders after it go test by
# test to a free process, and all others stay together by file.
TOGETHER = {
    "tests/bundle/": "a bundle, built and installed once",
    "tests/end_to_end/test_launch_slurm.py": "the daemons of Slurm",
    "tests/machine/test_slurm_live.py": "the daemons of Slurm",
}
ONE_BY_ONE = ("tests/end_to_end/",)
# Long sweeps over parameters: the fast tier runs a few sets spread over the sweep, the slow tier the rest.
SWEEPS = tuple(f"tests/{name}/" for name in ("accelerate", "bundle", "contracts", "end_to_end", "measured"))
FAST_SETS = 3
# Suffixes of environment variables that jobs set.
SET_BY_JOBS = ("_NUM_THREADS", "PJRT_NPROC", "COREWISE_PLANS", "TORCHINDUCTOR_CACHE_DIR")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Distribute tests so that shared fixtures are built once."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return find_scope(nodeid)

    for place in (*TOGETHER, *ONE_BY_ONE, *SWEEPS):
        assert (config.rootpath / place).exists(), f"{place} has moved: update {__file__}"
    # The slow folders come early by name.
    config.option.loadscopereorder = False
    return ByFile(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the parameter sets of a long sweep as slow, except for a few."""
    sweeps: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.nodeid.startswith(SWEEPS):
            sweeps.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for sets in sweeps.values():
        last = len(sets) - 1
        fast = {round(i * last / (FAST_SETS - 1)) for i in range(FAST_SETS)}
        for i, item in enumerate(sets):
            if i not in fast:
                item.add_marker("slow")


def find_scope(nodeid: str) -> str:
    """Find the name of the group of tests that run in the same process as this one."""
    for place, name in TOGETHER.items():
        if nodeid.startswith(place):
            return name
    return nodeid if nodeid.startswith(ONE_BY_ONE) else nodeid.partition("::")[0]


@pytest.fixture
def need() -> Callable[[bool, str], None]:
    """Skip with the reason if a system part is missing; fail instead if parts are required."""

    def check(present: bool, reason: str) -> None:
        if present:
            return
        if os.environ.get(REQUIRE_PARTS):
            pytest.fail(f"required here: {reason}")
        pytest.skip(reason)

    return check


@pytest.fixture
def give_away(need: Callable[[bool, str], None]) -> Callable[..., Path]:
    """Return a function that gives a file, link or folder to another user, who then lets everyone write to it."""
    need(os.geteuid() == 0, "only root can make files of other users")

    def give(path: Path, mode: int = 0o777) -> Path:
        os.chown(path, STRANGER, STRANGER, follow_symlinks=False)
        if not path.is_symlink():
            path.chmod(mode)
        return path

    return give


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provide a temporary folder like /tmp, for this process and those that it starts; nothing was logged before."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    folder.chmod(0o1777)
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.setattr("corewise.trusted_paths._logged", {})
    return folder


@pytest.fixture(autouse=True)
def own_surroundings(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep builds of tests out of the cache of the user, and the terminal of the user out of tests."""
    base = tmp_path_factory.getbasetemp()
    monkeypatch.setenv("XDG_CACHE_HOME", str(base / "cache"))
    # The C++ executor takes long to build and is named by a hash of its sources: it outlives the session.
    shared = next((folder for folder in base.parents if folder.name.startswith("pytest-of-")), base)
    monkeypatch.setenv("COREWISE_NATIVE_CACHE", str(shared / "corewise-native"))
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(autouse=True)
def _same_numbers_each_time(request: pytest.FixtureRequest) -> None:
    """Seed random numbers by the name of the test, independent of tests that ran before."""
    seed = zlib.crc32(request.node.nodeid.encode())
    random.seed(seed)
    numpy, torch = sys.modules.get("numpy.random"), sys.modules.get("torch")
    if numpy is not None:
        numpy.seed(seed)
    if torch is not None:
        torch.manual_seed(seed)


@pytest.fixture(autouse=True)
def _variables_as_before() -> Iterator[None]:
    """Restore variables that commands and jobs in this process set, so no later test inherits them."""

    def read_variables() -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if name.endswith(SET_BY_JOBS)}

    before = read_variables()
    yield
    for name in read_variables().keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture(autouse=True)
def _threads_as_before() -> Iterator[None]:
    """Restore the number of torch threads, which jobs in this process set."""
    torch: Any = sys.modules.get("torch")
    before = torch.get_num_threads() if torch is not None else len(os.sched_getaffinity(0))
    yield
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() != before:
        torch.set_num_threads(before)
