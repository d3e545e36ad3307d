"""Build the C++ executor as a Python module on first use, cache it, and rebuild it if its inputs change.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import importlib.util
import os
import pkgutil
import platform
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import torch

from corewise.accelerate.kernels.module_interface import NativeModule
from corewise.accelerate.kernels.switch import NATIVE_VARIABLE, is_native_disabled
from corewise.accelerate.malleable.idle_threads import warn_once
from corewise.owned_files import build_owned_prefix, remove_abandoned

# Units and their optimization levels. They are compiled in parallel; higher levels only where that pays.
UNITS = {"executor.cpp": "-O1", "module.cpp": "-O1", "recurrent.cpp": "-O3", "winograd.cpp": "-O3"}
HEADERS = (
    "boxing.h",
    "contents.h",
    "execution.h",
    "executor.h",
    "graph.h",
    "lanes.h",
    "operators.h",
    "recurrent.h",
    "recurrent_kernel.h",
    "team.h",
    "training.h",
    "waiting.h",
    "widths.h",
    "winograd.h",
    "winograd_kernel.h",
    "winograd_team.h",
    "winograd_training.h",
    "winograd_versions.h",
)
NAME = "corewise_native"
# Environment variable with another folder for builds, for images and shared installations.
CACHE_VARIABLE = "COREWISE_NATIVE_CACHE"
MAX_BUILD_S = 300
# The name of the folder of a build in progress.
BUILDING = ".building"
_TORCH = Path(torch.__file__).parent
_lock = threading.Lock()
# The module, or the reason why there is none, after the first attempt.
_loaded: Dict[str, Any] = {}


class NativeBuildError(Exception):
    """Raised with the reason if there is no C++ executor."""


def load_native_module() -> NativeModule:
    """Load the extension module, building it if necessary; raise NativeBuildError with the reason."""
    # Layers call this at each call, so it must be fast.
    if "module" in _loaded:
        return _loaded["module"]  # type: ignore[no-any-return]
    if is_native_disabled():
        raise NativeBuildError(f"{NATIVE_VARIABLE}=0 disables it")
    with _lock:
        if "module" not in _loaded and "problem" not in _loaded:
            try:
                _loaded["module"] = _load_or_rebuild()
            except NativeBuildError as problem:
                _loaded["problem"] = str(problem)
        if "problem" in _loaded:
            raise NativeBuildError(_loaded["problem"])
        return _loaded["module"]  # type: ignore[no-any-return]


def is_built() -> bool:
    """Return whether it can be loaded without building."""
    return "module" in _loaded or any(path.exists() for path in _list_builds(_find_build_folder(), _find_compiler()))


def _load_or_rebuild() -> Any:
    path = _build_if_missing()
    try:
        return _load(path)
    except NativeBuildError:
        if _find_compiler() is None:
            raise
        with contextlib.suppress(OSError):
            # The file is damaged. Another process may have removed it already.
            path.unlink()
        return _load(_build_if_missing())


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(NAME, path)
    if spec is None or spec.loader is None:
        raise NativeBuildError(f"{path} cannot be loaded")
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as problem:
        raise NativeBuildError(f"{path} cannot be loaded: {problem}") from problem
    return module


def _build_if_missing() -> Path:
    folder, compiler = _find_build_folder(), _find_compiler()
    for path in _list_builds(folder, compiler):
        if path.exists():
            return path
    if sys.platform != "linux":
        raise NativeBuildError(f"the C++ executor needs Linux, not {sys.platform}")
    if compiler is None:
        raise NativeBuildError("no C++ compiler found; install g++ or clang++, or set CXX")
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        raise NativeBuildError("Python.h is missing; install Python's development headers")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for one in (folder, folder.parent):
            _remove_foreign_write_access(one)
        with _lock_folder(folder):
            target = _list_builds(folder, compiler)[0]
            # Another process may have built it since.
            if not target.exists():
                warn_once("building the C++ executor once for this torch and compiler, in about 30 s")
                _compile(compiler, target)
            return target
    except OSError as problem:
        raise NativeBuildError(f"{folder} cannot be written: {problem.strerror or problem}") from problem


def _compile(compiler: str, target: Path) -> None:
    # A builder that was killed could not remove its folder.
    remove_abandoned(BUILDING, target.parent)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=build_owned_prefix(BUILDING)) as place:
        for name, data in read_sources().items():
            (Path(place) / name).write_bytes(data)
        parts = [
            [*build_compile_command(compiler), level, str(Path(place) / unit), "-o", f"{place}/{unit}.o"]
            for unit, level in UNITS.items()
        ]
        aside = Path(place) / target.name
        _run_commands(parts)
        _run_commands(
            [
                [
                    *build_link_command(compiler),
                    *[f"{place}/{unit}.o" for unit in UNITS],
                    *list_libraries(),
                    "-o",
                    str(aside),
                ]
            ]
        )
        _remove_foreign_write_access(aside)
        os.replace(aside, target)


def _run_commands(commands: Sequence[Sequence[str]]) -> None:
    """Run commands in parallel; raise the error of the first that fails."""
    until = time.monotonic() + MAX_BUILD_S
    running = [
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for command in commands
    ]
    try:
        for process in running:
            output, _ = process.communicate(timeout=max(0.0, until - time.monotonic()))
            if process.returncode != 0:
                raise NativeBuildError(
                    f"{commands[0][0]} failed: {_extract_first_error(output.decode(errors='replace'))}"
                )
    except subprocess.TimeoutExpired:
        raise NativeBuildError(f"{commands[0][0]} took longer than {MAX_BUILD_S} s") from None
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
                process.communicate()


def _extract_first_error(output: str) -> str:
    lines = output.splitlines()
    errors = [line.strip() for line in lines if "error" in line.lower()]
    return (errors or lines or ["no message"])[0][:300]


def build_compile_command(compiler: str) -> List[str]:
    """Build the command that compiles a file, without its name and optimization level."""
    return [
        compiler,
        *("-std=c++20", "-ffp-contract=fast", "-fPIC", "-fvisibility=hidden", "-c"),
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        *("-isystem", str(_TORCH / "include")),
        *("-isystem", sysconfig.get_paths()["include"]),
    ]


def build_link_command(compiler: str) -> List[str]:
    """Build the command that links object files, without their names."""
    return [compiler, "-shared"]


def list_libraries() -> List[str]:
    """List the linker options of torch's libraries, which torch has already loaded."""
    return [f"-L{_TORCH / 'lib'}", "-ltorch_python", "-ltorch_cpu", "-lc10", "-lpthread"]


def read_sources() -> Dict[str, bytes]:
    """Read the C++ files, also from within a zip archive."""
    sources: Dict[str, bytes] = {}
    for name in (*UNITS, *HEADERS):
        data = pkgutil.get_data("corewise.accelerate.kernels", name)
        if data is None:
            raise NativeBuildError(f"{name} is not among Corewise's files")
        sources[name] = data
    return sources


def _find_build_folder() -> Path:
    """Find the folder of builds for this torch, this Python and these sources; one file per compiler."""
    digest = hashlib.sha256()
    parts = (
        torch.__version__,
        str(torch.version.git_version),
        str(torch.compiled_with_cxx11_abi()),
        str(torch.__file__),
        str(sysconfig.get_config_var("EXT_SUFFIX")),
        platform.machine(),
    )
    for part in parts:
        digest.update(part.encode() + b"\0")
    for name, data in read_sources().items():
        digest.update(name.encode() + b"\0" + data + b"\0")
    return _find_cache_folder() / "native" / digest.hexdigest()[:20]


def _find_cache_folder() -> Path:
    cache_home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    requested = os.environ.get(CACHE_VARIABLE)
    # There is no home directory.
    if not requested and cache_home.startswith("~"):
        return _find_temporary_folder()
    folder = Path(requested or Path(cache_home) / "corewise")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK)
    except OSError:
        writable = False
    return folder if writable else _find_temporary_folder()


def _find_temporary_folder() -> Path:
    """Find a folder that only this user can write to: its files are loaded as code."""
    folder = Path(tempfile.gettempdir()) / f"corewise-{os.getuid()}"
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, mode=0o700, exist_ok=True)
        builds = [one for one in folder.rglob("*") if one.suffix == ".so" or one.is_dir()]
        if all(_is_private(one) for one in (folder, *builds)):
            return folder
    if "private" not in _loaded:
        _loaded["private"] = _create_private_folder()
    return _loaded["private"]  # type: ignore[no-any-return]


def _is_private(path: Path) -> bool:
    status = path.lstat()
    return status.st_uid == os.getuid() and not stat.S_ISLNK(status.st_mode) and not status.st_mode & 0o022


def _remove_foreign_write_access(path: Path) -> None:
    """Remove write access of others, whatever the umask, unless the file belongs to someone else."""
    if path.stat().st_uid == os.getuid():
        path.chmod(stat.S_IMODE(path.stat().st_mode) & ~0o022)


def _create_private_folder() -> Path:
    """Create a folder that is removed at the end of the process."""
    folder = tempfile.mkdtemp(prefix="corewise-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _find_compiler() -> Optional[str]:
    for name in (os.environ.get("CXX"), "g++", "clang++", "c++"):
        path = shutil.which(name) if name else None
        if path:
            return path
    return None


def _list_builds(folder: Path, compiler: Optional[str]) -> Tuple[Path, ...]:
    """List this compiler's file; without a compiler all builds, the newest first."""
    if compiler is not None:
        real = Path(compiler).resolve()
        identity = f"{compiler}\0{real}\0{real.stat().st_mtime_ns}\0{real.stat().st_size}"
        return (folder / f"{NAME}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}.so",)
    with contextlib.suppress(OSError):
        return tuple(sorted(folder.glob(f"{NAME}-*.so"), key=lambda path: -path.stat().st_mtime))
    return ()


@contextlib.contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Let one process of this machine build at a time; without file locks several may build."""
    with open(folder / ".lock", "w") as handle:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
