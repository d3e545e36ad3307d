"""Reads the version and the packages of an interpreter from its files, without starting it.

`corewise plan` runs nothing, but the id of a trial depends on these versions. The search follows CPython on
Linux: where it finds its library, and which folders the module `site` adds. Whatever code would decide is not
guessed: the interpreter then has a `problem`, and only starting it gives the answer.
"""

import mmap
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from corewise.measured.worker.main import read_package_versions
from corewise.run.machine_view import Interpreter

# Variables from which an interpreter derives the folders of its packages.
PATH_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "PYTHONPLATLIBDIR", "PYTHONUSERBASE", "PYTHONNOUSERSITE", "HOME")
# Variables that move the library itself.
LIBRARY_VARIABLES = ("PYTHONHOME", "PYTHONPLATLIBDIR")
# Modules that an interpreter runs at its start if it finds them.
STARTUP_MODULES = ("sitecustomize", "usercustomize")
LIBRARY_FOLDERS = ("lib64", "lib")
ELF_MAGIC = b"\x7fELF"


class _NotReadable(Exception):
    """The files do not say which version or packages the interpreter has."""


@dataclass(frozen=True)
class _Layout:
    """Where the files of an interpreter are.

    Attributes:
        binary: The program, with links resolved.
        name: The name of its folders below `lib`, such as python3.11.
        prefix: The folder of the virtual environment, or `base_prefix`.
        sees_base_packages: Whether packages of `base_prefix` and of the user are found.
    """

    binary: Path
    name: str
    prefix: Path
    base_prefix: Path
    sees_base_packages: bool


def read_interpreter_files(command: Sequence[str], env: Mapping[str, str]) -> Interpreter:
    """Read an interpreter from its files; `problem` says why its versions are not known.

    Args:
        command: The prefix and the interpreter of a study.
        env: The environment that the interpreter would get.
    """
    try:
        if len(command) > 1:
            raise _NotReadable(f"the prefix `{' '.join(command[:-1])}` decides what the interpreter finds")
        program = _find_program(command[0], env)
        if _is_this_interpreter(program, env):
            return _describe_this_interpreter(command)
        layout = _find_layout(program, env)
        packages = read_package_versions(_list_search_path(layout, env))
        return Interpreter(tuple(command), _read_version(layout), str(layout.prefix), packages)
    except _NotReadable as problem:
        return Interpreter(tuple(command), "", "", {}, problem=str(problem))


def _find_program(name: str, env: Mapping[str, str]) -> Path:
    found = shutil.which(name, path=env.get("PATH", os.defpath))
    if found is None:
        raise _NotReadable(f"the interpreter {name} was not found")
    return Path(os.path.abspath(found))


def _is_this_interpreter(program: Path, env: Mapping[str, str]) -> bool:
    """Return whether a start of the program would see the packages that this process sees."""
    is_same_program = program == Path(os.path.abspath(sys.executable or "/"))
    return is_same_program and all(env.get(name) == os.environ.get(name) for name in PATH_VARIABLES)


def _describe_this_interpreter(command: Sequence[str]) -> Interpreter:
    # The first entry is the folder of the program or the current folder; a trial has its own there.
    path = sys.path if sys.flags.safe_path else sys.path[1:]
    return Interpreter(tuple(command), platform.python_version(), sys.prefix, read_package_versions(path))


def _find_layout(program: Path, env: Mapping[str, str]) -> _Layout:
    """Find the folders of an interpreter as it would itself at its start."""
    for name in LIBRARY_VARIABLES:
        if env.get(name):
            raise _NotReadable(f"{name} moves the library of the interpreter")
    binary = program.resolve()
    if not _is_elf(binary):
        raise _NotReadable(f"{program} is a script, not an interpreter")
    settings = _read_environment_settings(program.parent)
    version = re.fullmatch(r"python(3\.\d+t?)", binary.name) or re.match(
        r"(3\.\d+)", settings.get("version") or settings.get("version_info") or ""
    )
    if version is None:
        raise _NotReadable(f"{binary} is not named like a CPython interpreter")
    name = f"python{version[1]}"
    base_prefix = _find_base_prefix([*map(Path, _list_homes(settings)), binary.parent], name)
    if base_prefix is None:
        raise _NotReadable(f"the library of {binary} was not found next to it")
    if "home" not in settings:
        return _Layout(binary, name, base_prefix, base_prefix, True)
    sees_base = settings.get("include-system-site-packages", "").lower() == "true"
    return _Layout(binary, name, program.parent.parent, base_prefix, sees_base)


def _is_elf(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(len(ELF_MAGIC)) == ELF_MAGIC
    except OSError as problem:
        raise _NotReadable(f"{path} cannot be read: {problem.strerror}") from None


def _read_environment_settings(folder: Path) -> dict[str, str]:
    """Read the pyvenv.cfg of a virtual environment from its folder `bin` or the one above; empty without."""
    for file in (folder / "pyvenv.cfg", folder.parent / "pyvenv.cfg"):
        try:
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        pairs = (line.partition("=") for line in lines if "=" in line)
        return {key.strip().lower(): value.strip() for key, _, value in pairs}
    return {}


def _list_homes(settings: Mapping[str, str]) -> list[str]:
    return [settings["home"]] if settings.get("home") else []


def _find_base_prefix(starts: Sequence[Path], name: str) -> Path | None:
    """Find the nearest folder above one of the starts that holds the standard library."""
    for start in (each.resolve() for each in starts):
        # The root is left out: there, /lib usually is a link to /usr/lib.
        for folder in [start, *start.parents][:-1]:
            if any((folder / lib / name / "os.py").is_file() for lib in LIBRARY_FOLDERS):
                return folder
    return None


def _read_version(layout: _Layout) -> str:
    """Read the full version, such as 3.11.7, from the C header or from the program itself."""
    if layout.binary == Path(getattr(sys, "_base_executable", None) or sys.executable).resolve():
        return platform.python_version()
    release = re.escape(layout.name.removeprefix("python").removesuffix("t"))
    version = rf"({release}\.\d+(?:(?:a|b|rc)\d+)?\+?)"
    header = layout.base_prefix / "include" / layout.name / "patchlevel.h"
    places = [(header, rf'#define PY_VERSION\s+"{version}"')]
    # Distributions install headers only on request. The program holds its version as a text.
    places += [(file, rf"\0{version}(?=\0)") for file in (layout.binary, *_list_shared_libraries(layout))]
    for file, pattern in places:
        versions = {found.decode() for found in _search_file(file, pattern.encode())}
        if len(versions) == 1:
            return versions.pop()
    raise _NotReadable(f"the version of {layout.binary} was not found in its files")


def _list_shared_libraries(layout: _Layout) -> Iterator[Path]:
    multiarch = f"{platform.machine()}-linux-gnu"
    for folder in (*LIBRARY_FOLDERS, f"lib/{multiarch}"):
        yield layout.base_prefix / folder / f"lib{layout.name}.so.1.0"


def _search_file(path: Path, pattern: bytes) -> list[bytes]:
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return re.findall(pattern, content)
    except (OSError, ValueError):
        return []


def _list_search_path(layout: _Layout, env: Mapping[str, str]) -> list[str]:
    """List the folders in which the interpreter looks for packages, in its order."""
    given = env.get("PYTHONPATH", "")
    path = [os.path.abspath(entry) for entry in given.split(os.pathsep)] if given else []
    for folder in _list_package_folders(layout, env):
        path += [str(folder), *_read_path_files(folder)]
    for entry in path:
        for module in STARTUP_MODULES:
            for file in (Path(entry, f"{module}.py"), Path(entry, module, "__init__.py")):
                if file.is_file():
                    raise _NotReadable(f"{file} runs when the interpreter starts")
    return path


def _list_package_folders(layout: _Layout, env: Mapping[str, str]) -> Iterator[Path]:
    """List the folders that the module `site` adds: environment, user, base."""
    is_environment = layout.prefix != layout.base_prefix
    folders = [_list_site_folders(layout.prefix, layout.name)] if is_environment else []
    if layout.sees_base_packages:
        folders += [_list_user_folders(layout, env), _list_site_folders(layout.base_prefix, layout.name)]
    yield from dict.fromkeys(folder for group in folders for folder in group if folder.is_dir())


def _list_user_folders(layout: _Layout, env: Mapping[str, str]) -> list[Path]:
    base = env.get("PYTHONUSERBASE") or (os.path.join(env["HOME"], ".local") if env.get("HOME") else "")
    return [] if env.get("PYTHONNOUSERSITE") or not base else [Path(base, "lib", layout.name, "site-packages")]


def _list_site_folders(prefix: Path, name: str) -> list[Path]:
    """List the folders of installed packages below a prefix; Debian and Fedora have more below /usr."""
    if prefix == Path("/usr"):
        if Path("/usr/lib/python3/dist-packages").is_dir():
            places = (f"local/lib/{name}", "lib/python3", f"lib/{name}")
            return [prefix / place / "dist-packages" for place in places]
        local = [Path("/usr/local", lib, name, "site-packages") for lib in LIBRARY_FOLDERS]
        return [*local, *(prefix / lib / name / "site-packages" for lib in LIBRARY_FOLDERS)]
    return [prefix / lib / name / "site-packages" for lib in LIBRARY_FOLDERS]


def _read_path_files(folder: Path) -> Iterator[str]:
    """Read the folders that the .pth files of a folder add."""
    for file in sorted(folder.glob("*.pth")):
        try:
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        for line in (each.strip() for each in lines):
            # Lines with code are not run. Most prepare imports; only those that change the path matter here.
            if line.startswith(("import ", "import\t")):
                if "sys.path" in line or "addsitedir" in line:
                    raise _NotReadable(f"{file} runs code that changes the path of packages")
            elif line and not line.startswith("#") and os.path.exists(folder / line):
                yield os.path.abspath(folder / line)
