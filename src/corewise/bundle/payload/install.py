"""Installs the bundle that contains this file: checks it and creates an environment, without network.

Runs under the target's Python before any package of the bundle is installed, so it imports none.
"""

import argparse
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

SUMS = "SHA256SUMS"
FRAMEWORKS = ("torch", "tensorflow", "jax")
# This file marks every folder that was created by this script.
MARK = ".corewise-install"
PARENT = "corewise-parent.pth"
# A message names at most this many files.
MOST_NAMED = 10


class InstallRefused(Exception):
    """The bundle cannot be installed here; the message says why and what to do."""


def main(arguments: list[str]) -> int:
    """Install; return 0 when the self-test passed, 1 when it failed, 2 when nothing was installed."""
    folder = Path(__file__).resolve().parent
    options = parse_options(arguments)
    prefix = Path(options.prefix).absolute()
    try:
        refuse_changed(folder)
        bundle = json.loads((folder / "bundle.json").read_text(encoding="utf-8"))
        refuse_other_machine(bundle)
        install(prefix, folder, bundle, options)
    except InstallRefused as problem:
        print(f"install.sh: {problem}", file=sys.stderr)
        return 2
    except OSError as problem:
        print(f"install.sh: {problem.filename or prefix}: {problem.strerror or problem}", file=sys.stderr)
        return 2
    print(f"corewise {bundle['corewise']} is installed: {prefix}/bin/corewise", flush=True)
    if options.no_selftest:
        return 0
    return subprocess.run([str(prefix / "bin/python"), "-P", "-m", "corewise.bundle.selftest"]).returncode


def parse_options(arguments: list[str]) -> argparse.Namespace:
    """Parse the options of install.sh."""
    parser = argparse.ArgumentParser(prog="install.sh", description="Install Corewise without any network.")
    parser.add_argument("prefix", nargs="?", default="corewise-env", help="the folder to install into")
    visibility = parser.add_mutually_exclusive_group()
    visibility.add_argument(
        "--system-site-packages",
        action="store_true",
        help="use the packages of this Python, such as the centre's torch (default if it has a framework)",
    )
    visibility.add_argument(
        "--isolated",
        action="store_true",
        help="use none of them; a study then names the centre's Python: `python: /path/to/python3`",
    )
    parser.add_argument(
        "--unpack",
        action="store_true",
        help="unpack the wheels instead of creating an environment (needs neither venv nor pip)",
    )
    parser.add_argument("--no-selftest", action="store_true", help="do not run the self-test")
    return parser.parse_args(arguments)


def find_changed_files(folder: Path) -> list[str]:
    """List differences from SHA256SUMS, one sentence per file that is changed, missing or added."""
    changes, listed = [], set()
    for line in (folder / SUMS).read_text(encoding="utf-8").splitlines():
        expected, _, name = line.partition("  ")
        listed.add(name)
        path = folder / name
        if not name or not path.is_file():
            changes.append(f"{name or line} is missing")
        elif hash_file(path) != expected:
            changes.append(f"{name} has changed")
    files = list_files(folder, listed)
    return changes + [f"{name} is not part of it" for name in sorted(files - listed - {SUMS})]


def list_files(folder: Path, listed: set[str]) -> set[str]:
    """List the files of the folder, except those of an earlier installation inside it."""
    paths = set()
    for place, names, files in os.walk(folder):
        inside = Path(place).relative_to(folder)
        if MARK in files and not any(Path(name).is_relative_to(inside) for name in listed):
            names.clear()
            continue
        links = [name for name in names if os.path.islink(os.path.join(place, name))]
        paths |= {(inside / name).as_posix() for name in (*files, *links)}
    return paths


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def refuse_changed(folder: Path) -> None:
    try:
        changes = find_changed_files(folder)
    except FileNotFoundError:
        changes = [f"{SUMS} is missing"]
    if changes:
        more = f"; and {len(changes) - MOST_NAMED:,} more files" if len(changes) > MOST_NAMED else ""
        listed = "; ".join(changes[:MOST_NAMED]) + more
        raise InstallRefused(
            f"the bundle was changed: {listed}. Copy it again, and keep other files outside its folder."
        )


def refuse_other_machine(bundle: dict[str, Any]) -> None:
    machine = {"arm64": "aarch64", "amd64": "x86_64"}.get(platform.machine().lower(), platform.machine())
    if machine != bundle["machine"]:
        raise InstallRefused(
            f"this bundle is for {bundle['machine']}, but this machine is {machine}; "
            f"make one for it: corewise bundle --platform {machine}"
        )
    name, version = platform.libc_ver()
    here, needed = [tuple(map(int, text.split(".")[:2])) if text else () for text in (version, bundle["glibc"])]
    if name != "glibc" or here < needed:
        raise InstallRefused(
            f"this bundle needs glibc {bundle['glibc']} or newer, but this machine has "
            f"{name or 'another C library'} {version}; "
            f"make one for it: corewise bundle --glibc {version or '2.17'}"
        )


def should_share_packages(options: argparse.Namespace, bundle: dict[str, Any], here: dict[str, str]) -> bool:
    """Decide whether the environment uses the packages of this Python, given its frameworks and numpy."""
    if bundle["worker_only"]:
        if options.isolated:
            raise InstallRefused("a worker-only bundle contains no numpy: it cannot be installed with --isolated")
        if "numpy" not in here:
            raise InstallRefused(
                f"a worker-only bundle contains no numpy, and {sys.executable} has none; "
                "name a Python that has it (PYTHON=/path/to/python3 sh install.sh), or use a full bundle"
            )
        return True
    if options.isolated or options.system_site_packages:
        return bool(options.system_site_packages)
    return any(name in here for name in FRAMEWORKS) and not bundle["frameworks"]


def find_version(name: str) -> str | None:
    """Find the version of a package that this Python can import, or None."""
    if importlib.util.find_spec(name) is None:
        return None
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        # The distribution may have another name: tensorflow-cpu provides tensorflow.
        providers = importlib.metadata.packages_distributions().get(name)
        return importlib.metadata.version(providers[0]) if providers else "of unknown version"


def install(prefix: Path, folder: Path, bundle: dict[str, Any], options: argparse.Namespace) -> None:
    """Install into an environment, or unpack the wheels if this Python cannot create one."""
    here = {name: version for name in (*FRAMEWORKS, "numpy") if (version := find_version(name))}
    shares = should_share_packages(options, bundle, here)
    visible = ", ".join(f"{name} {version}" for name, version in here.items()) or "no framework"
    print(f"Uses the packages of {sys.executable}: {visible}." if shares else "Isolated from other packages.")
    unpacks = options.unpack or importlib.util.find_spec("ensurepip") is None
    if unpacks and options.isolated:
        raise InstallRefused(
            "--isolated needs an environment, which this Python cannot create (Debian: install python3-venv)"
        )
    claim(prefix, "unpacked" if unpacks else "environment")
    if unpacks:
        unpack(prefix, folder, bundle)
    else:
        make_environment(prefix, shares)
        install_wheels(prefix, folder, bundle, shares)


def claim(prefix: Path, layout: str) -> None:
    """Create the folder and mark it for later installs; refuse a folder with other files."""
    mark = prefix / MARK
    new = not mark.exists()
    if new and prefix.exists() and (not prefix.is_dir() or any(prefix.iterdir())):
        raise InstallRefused(
            f"{prefix} exists and was not created by install.sh; name a new folder: sh install.sh PREFIX"
        )
    if not new and mark.read_text() != f"{layout}\n":
        raise InstallRefused(f"{prefix} was installed with another layout (--unpack or not); name a new folder")
    prefix.mkdir(parents=True, exist_ok=True)
    mark.write_text(f"{layout}\n")


def make_environment(prefix: Path, shares: bool) -> None:
    """Create a virtual environment; inside another one, add its packages, which venv leaves out."""
    command = [sys.executable, "-P", "-m", "venv", str(prefix)]
    parent = find_parent_packages() if shares else []
    if shares and (not parent or has_system_packages()):
        command.append("--system-site-packages")
    if subprocess.run(command, env=clean_environment()).returncode:
        raise InstallRefused(f"{shlex.join(command)} failed; try: sh install.sh --unpack PREFIX")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    link = prefix / "lib" / version / "site-packages" / PARENT
    if parent:
        # addsitedir also processes the .pth files of the folder.
        lines = [f"import site; site.addsitedir({path!r})\n" for path in parent]
        link.write_text("".join(lines), encoding="utf-8")
    else:
        link.unlink(missing_ok=True)


def find_parent_packages() -> list[str]:
    """Find the package folders of the virtual environment that this Python belongs to, if any."""
    if sys.prefix == sys.base_prefix:
        return []
    return [path for path in sys.path if path.startswith(sys.prefix + os.sep) and path.endswith("-packages")]


def has_system_packages() -> bool:
    """Return True when the parent environment uses the system packages."""
    text = (Path(sys.prefix) / "pyvenv.cfg").read_text(encoding="utf-8").lower().replace(" ", "")
    return "include-system-site-packages=true" in text


def install_wheels(prefix: Path, folder: Path, bundle: dict[str, Any], shares: bool) -> None:
    """Install the wheels with pip, only from the folder."""
    wheels = folder / "wheels"
    pip = [str(prefix / "bin/python"), "-P", "-m", "pip", "install", "--no-index", "--find-links", str(wheels)]
    pip += ["--disable-pip-version-check", "--no-cache-dir", "--quiet"]
    if bundle["worker_only"]:
        run_pip([*pip, "--force-reinstall", "--no-deps", *map(str, list_wheels(folder))], prefix)
        return
    held = prefix / ".held.txt"
    numpy = find_version("numpy") if shares and not bundle["frameworks"] else None
    # Another numpy than the one that the centre's framework was built with can break the framework.
    held.write_text(f"numpy=={numpy}\n" if numpy and numpy[0].isdigit() else "")
    # Reinstall Corewise in any case: the same version may already be installed with other files.
    run_pip([*pip, "--force-reinstall", "--no-deps", f"corewise=={bundle['corewise']}"], prefix)
    run_pip([*pip, "--constraint", str(held), *bundle["install"]], prefix)


def list_wheels(folder: Path) -> list[Path]:
    """Return all wheels of the bundle."""
    return sorted((folder / "wheels").glob("*.whl"))


def run_pip(command: list[str], prefix: Path) -> None:
    if subprocess.run(command, env=clean_environment()).returncode:
        raise InstallRefused(
            f"pip could not install the bundle into {prefix}. If packages of this Python conflict, "
            "install without them: sh install.sh --isolated PREFIX, and name this Python in the study: "
            f"`python: {sys.executable}`"
        )


def clean_environment() -> dict[str, str]:
    """Return the environment without pip settings, so pip never contacts an index."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    return {**environment, "PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1"}


def unpack(prefix: Path, folder: Path, bundle: dict[str, Any]) -> None:
    """Unpack the wheels and write two commands that find them; keep the numpy of this Python if any."""
    print("Unpacks the wheels; no environment is created.")
    packages = prefix / "packages"
    shutil.rmtree(packages, ignore_errors=True)
    keeps_numpy = find_version("numpy") is not None and not bundle["frameworks"]
    for path in list_wheels(folder):
        if not (keeps_numpy and path.name.startswith("numpy-")):
            unpack_wheel(path, packages)
    (prefix / "bin").mkdir(exist_ok=True)
    for name, arguments in (("python", ""), ("corewise", "-m corewise ")):
        command = prefix / "bin" / name
        command.write_text(
            "#!/bin/sh\n"
            f"PYTHONPATH={shlex.quote(str(packages))}${{PYTHONPATH:+:$PYTHONPATH}}\n"
            "export PYTHONPATH\n"
            f'exec {shlex.quote(sys.executable)} {arguments}"$@"\n',
            encoding="utf-8",
        )
        command.chmod(0o755)


def unpack_wheel(path: Path, packages: Path) -> None:
    """Unpack the files that Python imports, without programs and headers."""
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            parts = member.filename.split("/")
            if parts[0].endswith(".data"):
                if parts[1] not in ("purelib", "platlib"):
                    continue
                member.filename = "/".join(parts[2:])
            written = archive.extract(member, packages)
            if member.external_attr >> 16 & 0o111 and not member.is_dir():
                os.chmod(written, os.stat(written).st_mode | 0o555)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
