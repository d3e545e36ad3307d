"""Real bundles, and a node to install them on: a Python with numpy and nothing else."""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from bundling import MADE_AT, NO_INDEX, THIS, Installed, install, only_from

from corewise.bundle.make import Made, Order, make_bundle
from corewise.bundle.pip_download import Source, download
from corewise.bundle.target import Target
from corewise.bundle.wishes import make_wishes
from corewise.spec.errors import UserError


@pytest.fixture(scope="session")
def wheelhouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheels a worker-only bundle for this Python is chosen from, fetched once."""
    folder = tmp_path_factory.mktemp("wheelhouse")
    try:
        download(make_wishes(THIS, (), True).roots, folder, THIS, Source(), lambda text: None)
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
def make_worker(wheelhouse: Path, no_index: None) -> Callable[..., Made]:
    """Makes worker-only bundles for this Python from the wheels at hand."""

    def made(folder: Path, *, archive: bool = False, force: bool = False, target: Target = THIS) -> Made:
        order = Order(
            folder=folder,
            target=target,
            worker_only=True,
            source=only_from(wheelhouse),
            archive=archive,
            force=force,
        )
        return make_bundle(order, lambda text: None)

    return made


@pytest.fixture(scope="session")
def worker(wheelhouse: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A worker-only bundle for this Python; tests do not change it."""
    folder = tmp_path_factory.mktemp("worker") / "bundle"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**NO_INDEX, "SOURCE_DATE_EPOCH": MADE_AT}.items():
            patch.setenv(name, value)
        order = Order(
            folder=folder, target=THIS, worker_only=True, source=only_from(wheelhouse), archive=True
        )
        return make_bundle(order, lambda text: None)


@pytest.fixture(scope="session")
def node_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a node: numpy, and nothing else that is installed here."""
    folder = tmp_path_factory.mktemp("node") / "own python"  # a space, as some people have
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
def installed(worker: Made, node_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The worker-only bundle, read-only, installed at a path with a space."""
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
def copied(worker: Made, tmp_path: Path) -> Path:
    """A copy of the bundle that a test may spoil."""
    return shutil.copytree(worker.folder, tmp_path / "bundle")
