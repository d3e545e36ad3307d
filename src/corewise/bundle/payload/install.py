"""Installs the bundle this file lies in: checks it, makes an environment, fetches nothing.

Runs alone, under the target's own Python, before anything of the bundle is installed.
"""

import argparse
import base64
import hashlib
import importlib.metadata
import importlib.util
import io
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

SUMS = "SHA256SUMS"
FRAMEWORKS = ("torch", "tensorflow", "jax")
MARK = ".corewise-install"  # lies in every folder that this file has installed into
PARENT = "corewise-parent.pth"
MOST_NAMED = 10  # files in one message


class Refused(Exception):
    """Why this bundle cannot be installed here, and what to do."""


def main(words: list[str]) -> int:
    """Install; the exit code is 0 when the self-test passed, 1 when it did not, 2 when nothing was done."""
    folder = Path(__file__).resolve().parent
    options = parsed(words)
    prefix = Path(options.prefix).absolute()
    try:
        refuse_changed(folder)
        bundle = json.loads((folder / "bundle.json").read_text(encoding="utf-8"))
        refuse_other_machine(bundle)
        install(prefix, folder, bundle, options)
    except Refused as problem:
        print(f"install.sh: {problem}", file=sys.stderr)
        return 2
    except OSError as problem:
        print(f"install.sh: {problem.filename or prefix}: {problem.strerror or problem}", file=sys.stderr)
        return 2
    print(f"corewise {bundle['corewise']} is installed: {prefix}/bin/corewise", flush=True)
    if options.no_selftest:
        return 0
    return subprocess.run([str(prefix / "bin/python"), "-m", "corewise.bundle.selftest"]).returncode


def parsed(words: list[str]) -> argparse.Namespace:
    """The options of install.sh."""
    parser = argparse.ArgumentParser(prog="install.sh", description="Install Corewise without any network.")
    parser.add_argument("prefix", nargs="?", default="corewise-env", help="the folder to install into")
    seen = parser.add_mutually_exclusive_group()
    seen.add_argument(
        "--system-site-packages",
        action="store_true",
        help="see the packages of this Python, such as the centre's torch (the rule where it has one)",
    )
    seen.add_argument(
        "--isolated",
        action="store_true",
        help="see none of them; a study then names the centre's Python: `python: /path/to/python3`",
    )
    parser.add_argument(
        "--unpack",
        action="store_true",
        help="unpack the wheels instead of making an environment (needs neither venv nor pip)",
    )
    parser.add_argument("--no-selftest", action="store_true", help="install only")
    return parser.parse_args(words)


def changed_files(folder: Path) -> list[str]:
    """What differs from SHA256SUMS, a sentence for each file: changed, missing, or not part of the bundle."""
    wrong, listed = [], set()
    for line in (folder / SUMS).read_text(encoding="utf-8").splitlines():
        expected, _, name = line.partition("  ")
        listed.add(name)
        path = folder / name
        if not name or not path.is_file():
            wrong.append(f"{name or line} is missing")
        elif digest_of(path) != expected:
            wrong.append(f"{name} has changed")
    found = files_of(folder, listed)
    return wrong + [f"{name} is not part of it" for name in sorted(found - listed - {SUMS})]


def files_of(folder: Path, listed: set[str]) -> set[str]:
    """The files in the folder by name; an earlier installation beside those of the bundle is passed over."""
    found = set()
    for place, names, files in os.walk(folder):
        inside = Path(place).relative_to(folder)
        if MARK in files and not any(Path(name).is_relative_to(inside) for name in listed):
            names.clear()
            continue
        links = [name for name in names if os.path.islink(os.path.join(place, name))]
        found |= {(inside / name).as_posix() for name in (*files, *links)}
    return found


def digest_of(path: Path) -> str:
    """The SHA-256 of a file in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def refuse_changed(folder: Path) -> None:
    try:
        wrong = changed_files(folder)
    except FileNotFoundError:
        wrong = [f"{SUMS} is missing"]
    if wrong:
        more = f"; and {len(wrong) - MOST_NAMED:,} more files" if len(wrong) > MOST_NAMED else ""
        told = "; ".join(wrong[:MOST_NAMED]) + more
        raise Refused(
            f"the bundle is not as it was made: {told}. Copy it again; keep files of your own elsewhere."
        )


def refuse_other_machine(bundle: dict[str, Any]) -> None:
    machine = {"arm64": "aarch64", "amd64": "x86_64"}.get(platform.machine().lower(), platform.machine())
    if machine != bundle["machine"]:
        raise Refused(
            f"this bundle is for {bundle['machine']}, and this machine is {machine}; "
            f"make one for it: corewise bundle --platform {machine}"
        )
    name, version = platform.libc_ver()
    here, needed = [
        tuple(map(int, text.split(".")[:2])) if text else () for text in (version, bundle["glibc"])
    ]
    if name != "glibc" or here < needed:
        raise Refused(
            f"this bundle needs glibc {bundle['glibc']} or newer, and this machine has "
            f"{name or 'another C library'} {version}; "
            f"make one for it: corewise bundle --glibc {version or '2.17'}"
        )


def shares_packages(options: argparse.Namespace, bundle: dict[str, Any], here: dict[str, str]) -> bool:
    """Whether the environment is to see the packages of this Python, given those of note that it has."""
    if bundle["worker_only"]:
        if options.isolated:
            raise Refused("a worker-only bundle brings no numpy: it cannot be installed with --isolated")
        if "numpy" not in here:
            raise Refused(
                f"a worker-only bundle brings no numpy, and {sys.executable} has none; "
                "name a Python that has it (PYTHON=/path/to/python3 sh install.sh), or use a full bundle"
            )
        return True
    if options.isolated or options.system_site_packages:
        return bool(options.system_site_packages)
    return any(name in here for name in FRAMEWORKS) and not bundle["frameworks"]


def version_of(name: str) -> str | None:
    """The version of a package that this Python can import, or None."""
    if importlib.util.find_spec(name) is None:
        return None
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:  # as tensorflow, which tensorflow-cpu brings too
        brought_by = importlib.metadata.packages_distributions().get(name)
        return importlib.metadata.version(brought_by[0]) if brought_by else "of unknown version"


def install(prefix: Path, folder: Path, bundle: dict[str, Any], options: argparse.Namespace) -> None:
    """Install into an environment, or beside this Python where it cannot make one."""
    here = {name: version for name in (*FRAMEWORKS, "numpy") if (version := version_of(name))}
    shares = shares_packages(options, bundle, here)
    seen = ", ".join(f"{name} {version}" for name, version in here.items()) or "no framework"
    print(f"Sees the packages of {sys.executable}: {seen}." if shares else "Isolated from other packages.")
    unpacks = options.unpack or importlib.util.find_spec("ensurepip") is None
    if unpacks and options.isolated:
        raise Refused("--isolated needs an environment, and this Python can make none (Debian: python3-venv)")
    claim(prefix, "unpacked" if unpacks else "environment")
    if unpacks:
        unpack(prefix, folder, bundle)
    else:
        make_environment(prefix, shares)
        install_wheels(prefix, folder, bundle, shares)


def claim(prefix: Path, kind: str) -> None:
    """Make the folder, with a mark for a later install to know it by; one with other files is refused."""
    mark = prefix / MARK
    new = not mark.exists()
    if new and prefix.exists() and (not prefix.is_dir() or any(prefix.iterdir())):
        raise Refused(
            f"{prefix} exists and was not made by install.sh; name a new folder: sh install.sh PREFIX"
        )
    if not new and mark.read_text() != f"{kind}\n":
        raise Refused(f"{prefix} was installed in another way (--unpack or not); name a new folder")
    prefix.mkdir(parents=True, exist_ok=True)
    mark.write_text(f"{kind}\n")


def make_environment(prefix: Path, shares: bool) -> None:
    """A virtual environment; one made from within another sees that one's packages, which venv leaves out."""
    words = [sys.executable, "-m", "venv", str(prefix)]
    parent = parent_packages() if shares else []
    if shares and (not parent or parent_shares()):
        words.append("--system-site-packages")
    if subprocess.run(words, env=clean_environment()).returncode:
        raise Refused(f"{shlex.join(words)} failed; try: sh install.sh --unpack PREFIX")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    link = prefix / "lib" / version / "site-packages" / PARENT
    if parent:
        lines = [f"import site; site.addsitedir({path!r})\n" for path in parent]  # with its own .pth files
        link.write_text("".join(lines), encoding="utf-8")
    else:
        link.unlink(missing_ok=True)


def parent_packages() -> list[str]:
    """The package folders of the virtual environment this Python belongs to, if it does."""
    if sys.prefix == sys.base_prefix:
        return []
    return [path for path in sys.path if path.startswith(sys.prefix + os.sep) and path.endswith("-packages")]


def parent_shares() -> bool:
    text = (Path(sys.prefix) / "pyvenv.cfg").read_text(encoding="utf-8").lower().replace(" ", "")
    return "include-system-site-packages=true" in text


def install_wheels(prefix: Path, folder: Path, bundle: dict[str, Any], shares: bool) -> None:
    """Install the wheels by pip, from the folder alone."""
    wheels = folder / "wheels"
    pip = [str(prefix / "bin/python"), "-m", "pip", "install", "--no-index", "--find-links", str(wheels)]
    pip += ["--disable-pip-version-check", "--no-cache-dir", "--quiet"]
    if bundle["worker_only"]:
        with tempfile.TemporaryDirectory(dir=prefix) as scratch:
            files = [path_of_wheel(path, Path(scratch)) for path in wheels_in(folder)]
            run_pip([*pip, "--force-reinstall", "--no-deps", *map(str, files)], prefix)
        return
    held = prefix / ".held.txt"
    numpy = version_of("numpy") if shares and not bundle["frameworks"] else None
    # Another numpy before the one that the centre's framework was built with can break the framework.
    held.write_text(f"numpy=={numpy}\n" if numpy and numpy[0].isdigit() else "")
    # First, and in any case, this very Corewise: the same version may already be there with other files.
    run_pip([*pip, "--force-reinstall", "--no-deps", f"corewise=={bundle['corewise']}"], prefix)
    run_pip([*pip, "--constraint", str(held), *bundle["install"]], prefix)


def wheels_in(folder: Path) -> list[Path]:
    """All wheels of the bundle; some may be packed once more, as xz files."""
    return sorted([*(folder / "wheels").glob("*.whl"), *(folder / "wheels").glob("*.whl.xz")])


def path_of_wheel(path: Path, scratch: Path) -> Path:
    """The wheel itself, unpacked into the scratch folder where need be, with a table of its contents."""
    if path.suffix != ".xz":
        return path
    whole, rows, info = scratch / path.stem, [], ""
    packed = io.BytesIO(unpacked(path))
    with zipfile.ZipFile(packed) as source, zipfile.ZipFile(whole, "w") as wheel:
        for member in source.infolist():
            data = source.read(member)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            rows.append(f"{member.filename},sha256={digest},{len(data)}\n")
            info = member.filename.split("/")[0] if ".dist-info/" in member.filename else info
            wheel.writestr(member, data)
        record = f"{info}/RECORD"
        wheel.writestr(record, "".join([*rows, f"{record},,\n"]))
    return whole


def unpacked(path: Path) -> bytes:
    """What an xz file holds; some Pythons were built without the module for it, where the command may do."""
    try:
        import lzma

        return lzma.decompress(path.read_bytes())
    except ImportError:
        pass
    try:
        return subprocess.run(
            ["xz", "--decompress", "--stdout", str(path)], stdout=subprocess.PIPE, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError) as problem:
        raise Refused(
            f"{path.name} cannot be unpacked: this Python has no lzma module, and the command xz failed "
            f"({problem}). Install xz, or use a Python with lzma: PYTHON=... sh install.sh PREFIX"
        ) from problem


def run_pip(words: list[str], prefix: Path) -> None:
    if subprocess.run(words, env=clean_environment()).returncode:
        raise Refused(
            f"pip could not install the bundle into {prefix}. If packages of this Python do not fit, "
            "keep apart from them: sh install.sh --isolated PREFIX, and name this Python in the study: "
            f"`python: {sys.executable}`"
        )


def clean_environment() -> dict[str, str]:
    """The environment without settings of pip: no index is ever asked."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    return {**kept, "PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1"}


def unpack(prefix: Path, folder: Path, bundle: dict[str, Any]) -> None:
    """Unpack the wheels and write two commands that find them; a numpy that this Python has is kept."""
    print("Unpacked beside this Python; no environment is made.")
    packages = prefix / "packages"
    shutil.rmtree(packages, ignore_errors=True)
    keeps_numpy = version_of("numpy") is not None and not bundle["frameworks"]
    with tempfile.TemporaryDirectory(dir=prefix) as scratch:
        for path in wheels_in(folder):
            if not (keeps_numpy and path.name.startswith("numpy-")):
                unpack_wheel(path_of_wheel(path, Path(scratch)), packages)
    (prefix / "bin").mkdir(exist_ok=True)
    for name, words in (("python", ""), ("corewise", "-m corewise ")):
        command = prefix / "bin" / name
        command.write_text(
            "#!/bin/sh\n"
            f"PYTHONPATH={shlex.quote(str(packages))}${{PYTHONPATH:+:$PYTHONPATH}}\n"
            "export PYTHONPATH\n"
            f'exec {shlex.quote(sys.executable)} {words}"$@"\n',
            encoding="utf-8",
        )
        command.chmod(0o755)


def unpack_wheel(path: Path, packages: Path) -> None:
    """Unpack what Python imports; programs and headers stay behind."""
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
