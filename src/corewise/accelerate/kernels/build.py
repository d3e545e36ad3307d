"""Build the C++ executor as a Python module on first use, cache it, and rebuild it if its inputs change.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import pkgutil
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence

import torch

from corewise.accelerate.kernels.module_interface import NativeModule
from corewise.accelerate.kernels.switch import NATIVE_VARIABLE, is_native_disabled
from corewise.accelerate.malleable.idle_threads import warn_once
from corewise.cache_folder import find_cache_folder, find_shared_builds, open_builds_folder, open_cache_folder
from corewise.owned_files import build_owned_prefix, remove_abandoned
from corewise.trusted_paths import can_write, is_trusted_file

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
# The folder of builds within a cache.
FOLDER = "native"
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


def _load_or_rebuild() -> Any:
    path = _build_if_missing()
    try:
        return _load(path)
    except NativeBuildError:
        if _find_compiler() is None:
            raise
        with contextlib.suppress(OSError):
            # The file is damaged. Another process may have removed it already, or it may be read-only.
            path.unlink()
        return _load(_build_if_missing(damaged=path))


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


def _build_if_missing(damaged: Optional[Path] = None) -> Path:
    compiler, key = _find_compiler(), _compute_build_key()
    found = _find_build(compiler, key, damaged)
    if found is not None:
        return found
    if sys.platform != "linux":
        raise NativeBuildError(f"the C++ executor needs Linux, not {sys.platform}")
    if compiler is None:
        raise NativeBuildError("no C++ compiler found; install g++ or clang++, or set CXX")
    if not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")):
        raise NativeBuildError("Python.h is missing; install Python's development headers")
    try:
        folder = open_builds_folder(f"{FOLDER}/{key}")
        with _lock_folder(folder):
            target = _name_build(folder, compiler)
            # Another process may have built it since.
            if not is_trusted_file(target):
                warn_once("building the C++ executor once for this torch and compiler, in about 30 s")
                _compile(compiler, target)
            return target
    except OSError as problem:
        reason = problem.strerror or problem
        raise NativeBuildError(f"{problem.filename or 'the build'} cannot be written: {reason}") from problem


def _find_build(compiler: Optional[str], key: str, damaged: Optional[Path]) -> Optional[Path]:
    """Find a build in the shared folder, the user's cache, which may be read-only, or its replacement."""
    for folder in _list_build_folders(key):
        # A folder that we cannot write to is used as it is, whichever compiler filled it.
        builds = [_name_build(folder, compiler)] if compiler is not None and can_write(folder) else _list_builds(folder)
        for path in builds:
            if path != damaged and is_trusted_file(path):
                return path
    return None


def _list_build_folders(key: str) -> Iterator[Path]:
    shared = find_shared_builds()
    if shared is not None:
        yield shared / FOLDER / key
    yield find_cache_folder() / FOLDER / key
    with contextlib.suppress(OSError):
        yield open_cache_folder(FOLDER) / key


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
        # The compiler follows the umask, which may let the group write, or other users not read.
        aside.chmod(0o755)
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


def _compute_build_key() -> str:
    """Compute the name of the folder of builds for this torch, this Python and these sources; one file per compiler."""
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
    return digest.hexdigest()[:20]


def _find_compiler() -> Optional[str]:
    for name in (os.environ.get("CXX"), "g++", "clang++", "c++"):
        path = shutil.which(name) if name else None
        if path:
            return path
    return None


def _name_build(folder: Path, compiler: str) -> Path:
    real = Path(compiler).resolve()
    identity = f"{compiler}\0{real}\0{real.stat().st_mtime_ns}\0{real.stat().st_size}"
    return folder / f"{NAME}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}.so"


def _list_builds(folder: Path) -> List[Path]:
    """List the builds of all compilers, the newest first."""
    with contextlib.suppress(OSError):
        return sorted(folder.glob(f"{NAME}-*.so"), key=lambda path: -path.stat().st_mtime)
    return []


@contextlib.contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Let one process of this machine build at a time; without file locks several may build."""
    with open(folder / ".lock", "w") as handle:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
