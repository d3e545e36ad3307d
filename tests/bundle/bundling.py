"""Wheels to choose from, and a machine cut off from every index."""

import os
import subprocess
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from corewise.bundle.pip_download import Source
from corewise.bundle.target import make_target

NO_INDEX = {"PIP_NO_INDEX": "1", "PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_CONFIG_FILE": os.devnull}
HAS_NO_NETWORK = subprocess.run(["unshare", "-rn", "true"], capture_output=True).returncode == 0
NO_NETWORK = ("unshare", "-rn") if HAS_NO_NETWORK else ()
MADE_AT = "1700000000"
THIS = make_target(None, None, None)


def make_wheel(
    folder: Path, name: str, version: str, requires: tuple[str, ...] = (), tag: str = "py3-none-any"
) -> Path:
    """A wheel with one empty module."""
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


def only_from(folder: Path) -> Source:
    """A source that is one folder of wheels; the index has to be switched off in the environment."""
    return Source(find_links=(str(folder),))


def offline(extra: Mapping[str, str] = {}) -> dict[str, str]:
    """The environment with no index to ask."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    return {**kept, **NO_INDEX, **extra}


@dataclass(frozen=True)
class Installed:
    """What install.sh left and said."""

    prefix: Path
    done: subprocess.CompletedProcess[str]

    def corewise(self, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*NO_NETWORK, str(self.prefix / "bin/corewise"), *words],
            cwd=cwd,
            env=offline(),
            capture_output=True,
            text=True,
            timeout=300,
        )


def install(bundle: Path, python: Path | str | None, *words: str) -> subprocess.CompletedProcess[str]:
    """Run install.sh as on a machine without network."""
    return subprocess.run(
        [*NO_NETWORK, "sh", str(bundle / "install.sh"), *words],
        env=offline({} if python is None else {"PYTHON": str(python)}),
        capture_output=True,
        text=True,
        timeout=300,
    )
