"""What the files of an interpreter say is what the interpreter says when it is started."""

import os
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from corewise.launch.worker_archive import build_worker
from corewise.run.interpreter_files import read_interpreter_files
from corewise.run.machine_view import Interpreter, build_interpreter_environment, probe_interpreter

SITE = f"lib/python3.{sys.version_info.minor}/site-packages"
SYSTEM_PYTHON = Path("/usr/bin/python3")


def make_venv(folder: Path, **options: bool) -> Path:
    venv.EnvBuilder(**{"symlinks": True, **options}).create(folder)
    return folder


def install(folder: Path, name: str, version: str) -> None:
    """Leave the metadata that pip leaves."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def read_files(python: Path | str, **variables: str) -> Interpreter:
    return read_interpreter_files((str(python),), build_interpreter_environment(variables))


def start(python: Path | str, **variables: str) -> Interpreter:
    return probe_interpreter((str(python),), build_worker(), variables)


def test_this_interpreter_is_known_without_starting_it() -> None:
    assert read_files(sys.executable) == start(sys.executable)


@pytest.mark.parametrize("options", [{}, {"system_site_packages": True}, {"symlinks": False}], ids=str)
def test_a_virtual_environment_is_read_as_it_describes_itself(tmp_path: Path, options: dict[str, bool]) -> None:
    folder = make_venv(tmp_path / "env", **options)
    install(folder / SITE, "torch", "9.8.7")
    install(tmp_path / "elsewhere", "jax", "6.5")
    (folder / SITE / "more.pth").write_text(f"# a comment\nimport os\n\n{tmp_path / 'elsewhere'}\nmissing\n")
    found = read_files(folder / "bin/python")
    assert found == start(folder / "bin/python")
    assert (found.packages["torch"], found.packages["jax"]) == ("9.8.7", "6.5")


def test_packages_of_the_user_and_of_the_variable_are_found_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_venv(tmp_path / "env", system_site_packages=True)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for place, version in ((folder / SITE, "1"), (tmp_path / "home/.local" / SITE, "2"), (tmp_path / "given", "3")):
        install(place, "torch", version)
    install(tmp_path / "home/.local" / SITE, "jax", "2")
    python = folder / "bin/python"
    cases: list[tuple[dict[str, str], dict[str, str]]] = [
        ({}, {"torch": "1", "jax": "2"}),
        ({"PYTHONPATH": str(tmp_path / "given")}, {"torch": "3", "jax": "2"}),
        ({"PYTHONNOUSERSITE": "1"}, {"torch": "1"}),
        ({"PYTHONUSERBASE": str(tmp_path / "none")}, {"torch": "1"}),
    ]
    for variables, packages in cases:
        found = read_files(python, **variables)
        assert found == start(python, **variables)
        assert packages.items() <= found.packages.items()


def test_the_python_of_the_system_is_known(need: Callable[[bool, str], None]) -> None:
    need(SYSTEM_PYTHON.exists(), "no /usr/bin/python3")
    assert read_files(SYSTEM_PYTHON) == start(SYSTEM_PYTHON)


def test_a_version_is_found_in_the_program_if_there_is_no_header(tmp_path: Path) -> None:
    for name in ("bin", "lib/python3.9"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "lib/python3.9/os.py").touch()
    program = tmp_path / "bin/python3.9"
    program.write_bytes(b"\x7fELF\0built for 3.9.1\x003.9.22\x003.11.2\0")
    program.chmod(0o755)
    assert read_files(program).version == "3.9.22"
    # Two texts that look like the version decide nothing.
    program.write_bytes(b"\x7fELF\x003.9.22\x003.9.21\0")
    assert "the version of" in read_files(program).problem


def test_an_interpreter_on_the_path_is_found_by_its_name(tmp_path: Path) -> None:
    folder = make_venv(tmp_path / "env")
    found = read_files("python", PATH=f"{folder / 'bin'}:/usr/bin")
    assert (found.prefix, found.problem) == (str(folder), "")


def test_what_code_decides_is_unknown_with_the_reason(tmp_path: Path) -> None:
    folder = make_venv(tmp_path / "env")
    python, site = folder / "bin/python", folder / SITE
    script = tmp_path / "wrapper"
    script.write_text(f"#!/bin/sh\nexec {python}\n")
    script.chmod(0o755)
    (tmp_path / "startup").mkdir()
    (tmp_path / "startup/sitecustomize.py").touch()
    reasons = {
        "is a script": read_files(script),
        "was not found": read_files(tmp_path / "missing"),
        "startup/sitecustomize.py runs": read_files(python, PYTHONPATH=str(tmp_path / "startup")),
        "PYTHONHOME moves": read_files(python, PYTHONHOME="/usr"),
        "prefix `env -i`": read_interpreter_files(("env", "-i", str(python)), os.environ),
        "not named like": read_files("/bin/cat"),
    }
    (site / "late.pth").write_text("import sys; sys.path.append('/opt')\n")
    reasons["late.pth runs code"] = read_files(python)
    for reason, found in reasons.items():
        assert reason in found.problem
        assert (found.version, found.prefix, dict(found.packages)) == ("", "", {})
