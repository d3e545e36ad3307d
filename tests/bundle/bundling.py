"""Helpers for bundle tests: synthetic wheels, and an environment without package index or network."""

import os
import subprocess
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from corewise.bundle.pip_download import PackageSource
from corewise.bundle.target import parse_target

NO_INDEX = {"PIP_NO_INDEX": "1", "PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_CONFIG_FILE": os.devnull}
HAS_NO_NETWORK = subprocess.run(["unshare", "-rn", "true"], capture_output=True).returncode == 0
NO_NETWORK = ("unshare", "-rn") if HAS_NO_NETWORK else ()
MADE_AT = "1700000000"
THIS = parse_target(None, None, None)


def make_wheel(
    folder: Path, name: str, version: str, requires: tuple[str, ...] = (), tag: str = "py3-none-any"
) -> Path:
    """Write a wheel with one empty module."""
    info = f"{name}-{version}.dist-info"
    headers = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"]
    headers += [f"Requires-Dist: {each}\n" for each in requires]
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", "")
        archive.writestr(f"{info}/METADATA", "".join(headers))
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def make_source(folder: Path) -> PackageSource:
    """Create a source with one folder of wheels; the environment must disable the index."""
    return PackageSource(find_links=(str(folder),))


def make_offline_environment(extra: Mapping[str, str] = {}) -> dict[str, str]:
    """Return the environment without a package index."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    return {**environment, **NO_INDEX, **extra}


@dataclass(frozen=True)
class Installed:
    """An installation and the output of install.sh."""

    prefix: Path
    done: subprocess.CompletedProcess[str]

    def run_corewise(self, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*NO_NETWORK, str(self.prefix / "bin/corewise"), *arguments],
            cwd=cwd,
            env=make_offline_environment(),
            capture_output=True,
            text=True,
            timeout=300,
        )


def install(bundle: Path, python: Path | str | None, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run install.sh without a network."""
    return subprocess.run(
        [*NO_NETWORK, "sh", str(bundle / "install.sh"), *arguments],
        env=make_offline_environment({} if python is None else {"PYTHON": str(python)}),
        capture_output=True,
        text=True,
        timeout=300,
    )
