"""The measured side as one file that runs under any Python from 3.9 on."""

import fcntl
import hashlib
import os
import tempfile
import time
import zipfile
from contextlib import suppress
from pathlib import Path

from corewise.spec.cache_folder import default_cache

PACKAGE = Path(__file__).resolve().parent.parent
# What travels; the architecture test holds these to the standard library, numpy and one framework.
MEASURED_FILES = (
    "__init__.py",
    "spec/__init__.py",
    "spec/trial.py",
    "machine/__init__.py",
    "machine/pinning.py",
)
MEASURED_FOLDERS = ("worker", "runtimes", "workloads", "probes", "dataflow")
COMPILED_THERE = ("*.cpp", "*.h")  # sources that are built where they run
READ_THERE = "workloads/primitives/problems/*.txt"  # problems that come by name
FIXED_TIME = (2020, 1, 1, 0, 0, 0)  # so that equal sources give equal bytes
NUM_KEPT = 8  # workers in a cache: each version of Corewise has its own
UNUSED_S = 86400.0
_held: dict[Path, int] = {}  # workers that this process may start, each with the descriptor of its lock


def measured_sources(package: Path = PACKAGE) -> list[Path]:
    """The files of the measured side, relative to the package, in a fixed order."""
    found = [Path(name) for name in MEASURED_FILES]
    for folder in MEASURED_FOLDERS:
        found += [path.relative_to(package) for path in sorted((package / folder).rglob("*.py"))]
    return found


def native_sources(package: Path = PACKAGE) -> list[Path]:
    """The files in other languages that travel with them."""
    folder = package / "dataflow" / "native"
    found = [*package.glob(READ_THERE), *(path for kind in COMPILED_THERE for path in folder.glob(kind))]
    return sorted(path.relative_to(package) for path in found)


def build_worker(cache: Path | None = None, package: Path = PACKAGE) -> Path:
    """The path of a zipapp of the measured side, built unless one with this content is there."""
    travelling = [*measured_sources(package), *native_sources(package)]
    sources = [(path, (package / path).read_bytes()) for path in travelling]
    digest = hashlib.sha256()
    for path, data in sources:
        digest.update(f"{path}\0{len(data)}\0".encode() + data)
    name = f"worker-{digest.hexdigest()[:16]}.pyz"
    try:
        return _built(cache or default_cache(), name, sources)
    except OSError:
        if cache is not None:
            raise
    return _built(
        Path(tempfile.gettempdir()) / f"corewise-{os.getuid()}", name, sources
    )  # no home, or read-only


def _built(folder: Path, name: str, sources: list[tuple[Path, bytes]]) -> Path:
    target = folder / name
    if not _hold(target):
        folder.mkdir(parents=True, exist_ok=True)
        _write_zip(target, sources)
        _hold(target)
        _prune(folder)
    return target


def _hold(path: Path) -> bool:
    """True where the file is there: it is marked as in use until this process ends, and as just used."""
    if path not in _held:
        try:
            _held[path] = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        with suppress(OSError):  # a file system without locks, on which nothing is pruned
            fcntl.flock(_held[path], fcntl.LOCK_SH)
    if not path.exists():  # pruned just before it was marked
        os.close(_held.pop(path))
        return False
    with suppress(OSError):
        os.utime(path)
    return True


def _prune(folder: Path) -> None:
    """Removes workers that nobody used for a day; the last few stay, and so does one in use."""
    found, long_ago = [], time.time() - UNUSED_S
    for path in folder.glob("worker-*.pyz"):
        with suppress(OSError):  # another process prunes too
            found.append((path.stat().st_mtime, path))
    for used_at, path in sorted(found)[:-NUM_KEPT]:
        if used_at > long_ago:  # an older Corewise marks none as in use
            continue
        with suppress(OSError):  # in use
            descriptor = os.open(path, os.O_RDWR)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            finally:
                os.close(descriptor)


def _write_zip(target: Path, sources: list[tuple[Path, bytes]]) -> None:
    handle, aside = tempfile.mkstemp(dir=target.parent, prefix=".worker-", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as out, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            entry = b"import sys\nfrom corewise.worker.main import main\nsys.exit(main())\n"
            archive.writestr(zipfile.ZipInfo("__main__.py", FIXED_TIME), entry)
            for path, data in sources:
                archive.writestr(zipfile.ZipInfo(f"corewise/{path}", FIXED_TIME), data)
        os.replace(aside, target)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise
