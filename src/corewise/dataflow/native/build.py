"""The C++ executor as a Python module: built on first use, kept, built anew when what it rests on changes.

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

from corewise.dataflow.native.interface import NativeModule
from corewise.dataflow.native.switch import NATIVE_SWITCH, is_switched_off
from corewise.dataflow.spinning import note_once

# Compiled beside each other, each as far as it pays.
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
OWN_FOLDER = "COREWISE_NATIVE_CACHE"  # where builds are kept instead, for images and shared installations
MOST_BUILD_S = 300
_TORCH = Path(torch.__file__).parent
_lock = threading.Lock()
_loaded: Dict[str, Any] = {}  # the module, or why there is none, once tried


class CannotBuild(Exception):
    """Why there is no C++ executor here."""


def native_module() -> NativeModule:
    """The extension module; raises CannotBuild with the reason, the same each time in one process."""
    if "module" in _loaded:  # layers ask at each call
        return _loaded["module"]  # type: ignore[no-any-return]
    if is_switched_off():
        raise CannotBuild(f"{NATIVE_SWITCH}=0 says so")
    with _lock:
        if "module" not in _loaded and "problem" not in _loaded:
            try:
                _loaded["module"] = _loaded_module()
            except CannotBuild as problem:
                _loaded["problem"] = str(problem)
        if "problem" in _loaded:
            raise CannotBuild(_loaded["problem"])
        return _loaded["module"]  # type: ignore[no-any-return]


def is_built() -> bool:
    """Whether it is there without building."""
    return "module" in _loaded or any(path.exists() for path in _kept(_folder(), _compiler()))


def _loaded_module() -> Any:
    path = _built()
    try:
        return _load(path)
    except CannotBuild:
        if _compiler() is None:
            raise
        with contextlib.suppress(OSError):
            path.unlink()  # damaged; another process may have removed it already
        return _load(_built())


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(NAME, path)
    if spec is None or spec.loader is None:
        raise CannotBuild(f"{path} cannot be loaded")
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as problem:
        raise CannotBuild(f"{path} cannot be loaded: {problem}") from problem
    return module


def _built() -> Path:
    folder, compiler = _folder(), _compiler()
    for path in _kept(folder, compiler):
        if path.exists():
            return path
    if sys.platform != "linux":
        raise CannotBuild(f"the C++ executor needs Linux, not {sys.platform}")
    if compiler is None:
        raise CannotBuild("no C++ compiler is found (g++ or clang++ in PATH, or CXX)")
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        raise CannotBuild("Python's headers are missing (Python.h)")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for one in (folder, folder.parent):
            _not_for_others(one)
        with _alone(folder):
            target = _kept(folder, compiler)[0]
            if not target.exists():  # another process may have been quicker
                note_once("building the C++ part, once for this torch and compiler; it takes half a minute")
                _compile(compiler, target)
            return target
    except OSError as problem:
        raise CannotBuild(f"{folder} cannot be written: {problem.strerror or problem}") from problem


def _compile(compiler: str, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".building-") as place:
        for name, data in sources().items():
            (Path(place) / name).write_bytes(data)
        parts = [
            [*compile_command(compiler), level, str(Path(place) / unit), "-o", f"{place}/{unit}.o"]
            for unit, level in UNITS.items()
        ]
        aside = Path(place) / target.name
        _run_together(parts)
        _run_together(
            [
                [
                    *link_command(compiler),
                    *[f"{place}/{unit}.o" for unit in UNITS],
                    *libraries(),
                    "-o",
                    str(aside),
                ]
            ]
        )
        _not_for_others(aside)
        os.replace(aside, target)


def _run_together(commands: Sequence[Sequence[str]]) -> None:
    """Runs commands at the same time; the first that fails tells why."""
    until = time.monotonic() + MOST_BUILD_S
    running = [
        subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for words in commands
    ]
    try:
        for one in running:
            output, _ = one.communicate(timeout=max(0.0, until - time.monotonic()))
            if one.returncode != 0:
                raise CannotBuild(f"{commands[0][0]} failed: {_first_error(output.decode(errors='replace'))}")
    except subprocess.TimeoutExpired:
        raise CannotBuild(f"{commands[0][0]} took longer than {MOST_BUILD_S} s") from None
    finally:
        for one in running:
            if one.poll() is None:
                one.kill()
                one.communicate()


def _first_error(output: str) -> str:
    lines = output.splitlines()
    errors = [line.strip() for line in lines if "error" in line.lower()]
    return (errors or lines or ["no message"])[0][:300]


def compile_command(compiler: str) -> List[str]:
    """The words that compile a file, without its name and how far it is optimised."""
    return [
        compiler,
        *("-std=c++20", "-ffp-contract=fast", "-fPIC", "-fvisibility=hidden", "-c"),
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        *("-isystem", str(_TORCH / "include")),
        *("-isystem", sysconfig.get_paths()["include"]),
    ]


def link_command(compiler: str) -> List[str]:
    """The words that link object files, before their names."""
    return [compiler, "-shared"]


def libraries() -> List[str]:
    """What the module rests on; torch has loaded these already."""
    return [f"-L{_TORCH / 'lib'}", "-ltorch_python", "-ltorch_cpu", "-lc10", "-lpthread"]


def sources() -> Dict[str, bytes]:
    """The C++ files, also from within a zip archive."""
    found: Dict[str, bytes] = {}
    for name in (*UNITS, *HEADERS):
        data = pkgutil.get_data("corewise.dataflow.native", name)
        if data is None:
            raise CannotBuild(f"{name} is not among Corewise's files")
        found[name] = data
    return found


def _folder() -> Path:
    """Where builds for this torch, this Python and these sources lie, one file a compiler."""
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
    for name, data in sources().items():
        digest.update(name.encode() + b"\0" + data + b"\0")
    return _cache() / "native" / digest.hexdigest()[:20]


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    asked = os.environ.get(OWN_FOLDER)
    if not asked and base.startswith("~"):  # there is no home
        return _temporary()
    folder = Path(asked or Path(base) / "corewise")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK)
    except OSError:
        writable = False
    return folder if writable else _temporary()


def _temporary() -> Path:
    """A folder for builds that only this user can write to: what lies there is loaded as code."""
    folder = Path(tempfile.gettempdir()) / f"corewise-{os.getuid()}"
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, mode=0o700, exist_ok=True)
        builds = [one for one in folder.rglob("*") if one.suffix == ".so" or one.is_dir()]
        if all(_is_only_mine(one) for one in (folder, *builds)):
            return folder
    if "private" not in _loaded:
        _loaded["private"] = _private()
    return _loaded["private"]  # type: ignore[no-any-return]


def _is_only_mine(path: Path) -> bool:
    found = path.lstat()
    return found.st_uid == os.getuid() and not stat.S_ISLNK(found.st_mode) and not found.st_mode & 0o022


def _not_for_others(path: Path) -> None:
    """Takes the right to write from others, whatever the umask; not where the file is someone else's."""
    if path.stat().st_uid == os.getuid():
        path.chmod(stat.S_IMODE(path.stat().st_mode) & ~0o022)


def _private() -> Path:
    """A new folder, removed at the end of the process."""
    folder = tempfile.mkdtemp(prefix="corewise-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _compiler() -> Optional[str]:
    for name in (os.environ.get("CXX"), "g++", "clang++", "c++"):
        found = shutil.which(name) if name else None
        if found:
            return found
    return None


def _kept(folder: Path, compiler: Optional[str]) -> Tuple[Path, ...]:
    """The file of this compiler; without a compiler any that was built, the newest first."""
    if compiler is not None:
        real = Path(compiler).resolve()
        identity = f"{compiler}\0{real}\0{real.stat().st_mtime_ns}\0{real.stat().st_size}"
        return (folder / f"{NAME}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}.so",)
    with contextlib.suppress(OSError):
        return tuple(sorted(folder.glob(f"{NAME}-*.so"), key=lambda path: -path.stat().st_mtime))
    return ()


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process of this machine builds at a time; where files cannot be locked, several may, in vain."""
    with open(folder / ".lock", "w") as handle:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
