"""Find the software of a machine: allocators and OpenMP runtimes to preload, packages and launchers."""

import os
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from corewise.errors import UserError, suggest_nearest


@dataclass(frozen=True)
class Library:
    """A shared library, its file names, and how to install it."""

    file_names: tuple[str, ...]
    install_hint: str


LIBRARIES = {
    "tcmalloc": Library(
        ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4"),
        "apt install libtcmalloc-minimal4 (Debian, Ubuntu) or dnf install gperftools-libs (RHEL with EPEL)",
    ),
    "jemalloc": Library(
        ("libjemalloc.so.2",), "apt install libjemalloc2 (Debian, Ubuntu) or dnf install jemalloc (RHEL with EPEL)"
    ),
    "libiomp5": Library(("libiomp5.so",), "pip install intel-openmp"),
    "libgomp": Library(("libgomp.so.1",), "apt install libgomp1 (Debian, Ubuntu) or dnf install libgomp (RHEL)"),
}
ALLOCATORS = ("tcmalloc", "jemalloc")
FRAMEWORKS = ("torch", "tensorflow", "tensorflow-cpu", "jax")
PACKAGES = ("corewise", *FRAMEWORKS, "numpy", "mpi4py")
LAUNCHERS = ("mpirun", "srun", "torchrun")
ELF_32_BIT = b"\x7fELF\x01"


@dataclass(frozen=True)
class Software:
    """The installed software of this interpreter and machine; missing software is None.

    `packages` holds versions, `launchers` and `libraries` hold paths.
    """

    python: str
    glibc: str | None
    packages: Mapping[str, str | None]
    launchers: Mapping[str, str | None]
    libraries: Mapping[str, str | None]

    @property
    def frameworks(self) -> tuple[str, ...]:
        return tuple(name for name in FRAMEWORKS if self.packages.get(name))

    def to_json(self) -> dict[str, Any]:
        """Return the software as JSON values."""
        return asdict(self)


def find_library(
    name: str, root: Path = Path("/"), python_prefix: Path | None = None, env: Mapping[str, str] = os.environ
) -> Path | None:
    """Return the library's file, searched in the loader's order, or None if it is not installed."""
    library = _require_library(name)
    for folder in _list_folders(root, python_prefix, env):
        for file_name in library.file_names:
            path = folder / file_name
            if path.is_file() and not _is_32_bit(path):
                return path
    return None


def find_install_hint(name: str) -> str:
    """Return the command that installs the library."""
    return _require_library(name).install_hint


def read_glibc_version() -> str | None:
    """Return the version of glibc, or None for another C library."""
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").removeprefix("glibc ") or None
    except (ValueError, OSError):
        return None


def read_software(root: Path = Path("/"), env: Mapping[str, str] = os.environ) -> Software:
    """Return versions and paths of the installed software; imports and runs none of it."""
    prefix = Path(sys.prefix) if root == Path("/") else None
    programs = os.pathsep.join([env.get("PATH", ""), str(Path(sys.executable).parent)])
    libraries = {name: find_library(name, root, prefix, env) for name in LIBRARIES}
    return Software(
        python=platform.python_version(),
        glibc=read_glibc_version(),
        packages={name: _read_package_version(name) for name in PACKAGES},
        launchers={name: shutil.which(name, path=programs) for name in LAUNCHERS},
        libraries={name: None if path is None else str(path) for name, path in libraries.items()},
    )


def _require_library(name: str) -> Library:
    if name not in LIBRARIES:
        raise UserError(f"no such library: {name!r}; {suggest_nearest(name, LIBRARIES)}")
    return LIBRARIES[name]


def _list_folders(root: Path, python_prefix: Path | None, env: Mapping[str, str]) -> Iterator[Path]:
    for entry in env.get("LD_LIBRARY_PATH", "").split(":"):
        if entry.startswith("/"):
            yield root / entry.lstrip("/")
    # Conda and wheels like intel-openmp install their libraries here.
    if python_prefix is not None:
        yield python_prefix / "lib"
    multiarch = f"{platform.machine().replace('ppc64le', 'powerpc64le')}-linux-gnu"
    for folder in ("usr/local/lib", "usr/local/lib64", f"usr/lib/{multiarch}", f"lib/{multiarch}"):
        yield root / folder
    for folder in ("usr/lib64", "lib64", "usr/lib", "lib"):
        yield root / folder


def _is_32_bit(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            return sys.maxsize > 2**32 and file.read(5) == ELF_32_BIT
    except OSError:
        # A file that cannot be read cannot be loaded either.
        return True


def _read_package_version(name: str) -> str | None:
    # The import is lazy because it takes 40 ms.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return None
