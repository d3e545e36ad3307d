"""Real bundles, and a node to install them on: a Python with only numpy."""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from bundling import MADE_AT, NO_INDEX, THIS, Installed, install, make_source

from corewise.bundle.bundle_maker import BundleOrder, BundleResult, make_bundle
from corewise.bundle.pip_download import PackageSource, fetch_wheels
from corewise.bundle.requirements import resolve_requirements
from corewise.bundle.target import Target
from corewise.errors import UserError


@pytest.fixture(scope="session")
def wheelhouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fetch the wheels of a worker-only bundle for this Python, once."""
    folder = tmp_path_factory.mktemp("wheelhouse")
    try:
        fetch_wheels(resolve_requirements(THIS, (), True).roots, folder, THIS, PackageSource(), lambda text: None)
    except UserError as problem:
        if "cannot be reached" in str(problem) and not os.environ.get("COREWISE_REQUIRE_PARTS"):
            pytest.skip(f"no package index: {problem}")
        raise
    return folder


@pytest.fixture
def no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    for name, value in NO_INDEX.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", MADE_AT)


@pytest.fixture
def make_worker(wheelhouse: Path, no_index: None) -> Callable[..., BundleResult]:
    """Return a function that makes worker-only bundles for this Python from the wheelhouse."""

    def make(folder: Path, *, archive: bool = False, force: bool = False, target: Target = THIS) -> BundleResult:
        order = BundleOrder(
            folder=folder, target=target, worker_only=True, source=make_source(wheelhouse), archive=archive, force=force
        )
        return make_bundle(order, lambda text: None)

    return make


@pytest.fixture(scope="session")
def worker(wheelhouse: Path, tmp_path_factory: pytest.TempPathFactory) -> BundleResult:
    """Make a worker-only bundle for this Python; tests do not change it."""
    folder = tmp_path_factory.mktemp("worker") / "bundle"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**NO_INDEX, "SOURCE_DATE_EPOCH": MADE_AT}.items():
            patch.setenv(name, value)
        order = BundleOrder(folder=folder, target=THIS, worker_only=True, source=make_source(wheelhouse), archive=True)
        return make_bundle(order, lambda text: None)


@pytest.fixture(scope="session")
def node_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create the Python of a node, which has only numpy."""
    # The path contains a space on purpose.
    folder = tmp_path_factory.mktemp("node") / "own python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    packages = next((folder / "lib").glob("python3*")) / "site-packages"
    spec = importlib.util.find_spec("numpy")
    assert spec is not None
    assert spec.origin is not None
    here = Path(spec.origin).parent.parent
    for path in [*here.glob("numpy"), *here.glob("numpy.libs"), *here.glob("numpy-*.dist-info")]:
        (packages / path.name).symlink_to(path)
    return folder / "bin/python"


@pytest.fixture(scope="session")
def installed(worker: BundleResult, node_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Install the worker-only bundle, which is read-only, at a path with a space."""
    folder = tmp_path_factory.mktemp("cluster")
    bundle = shutil.copytree(worker.folder, folder / "read only")
    for path in [*bundle.rglob("*"), bundle]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    prefix = folder / "my env"
    done = install(bundle, node_python, str(prefix))
    for path in [bundle, *bundle.rglob("*")]:
        path.chmod(0o755)
    return Installed(prefix, done)


@pytest.fixture
def copied(worker: BundleResult, tmp_path: Path) -> Path:
    """Copy the bundle, so a test may change it."""
    return shutil.copytree(worker.folder, tmp_path / "bundle")
