"""Install a built wheel in an empty environment, without any framework, and use it.

    python tests/wheel/smoke_test_wheel.py dist/corewise-0.1.0-py3-none-any.whl

With --runners the wheel is also run by `uvx` and `pipx`, which are installed in a temporary environment.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"
TIMEOUT_S = 600


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--runners", action="store_true", help="also use uvx and pipx")
    asked = parser.parse_args()
    smoke_test(asked.wheel.resolve())
    if asked.runners:
        run_by_runners(asked.wheel.resolve())
    print(f"{asked.wheel.name}: installs and runs without a framework")


def smoke_test(wheel: Path) -> None:
    """Install the wheel alone and run the verbs that need no framework."""
    with tempfile.TemporaryDirectory(prefix="corewise-dist-") as folder:
        python = _make_environment(Path(folder) / "venv")
        _run([python, "-m", "pip", "install", "-q", "-c", CONSTRAINTS, wheel], folder)
        corewise = python.parent / "corewise"
        version = wheel.name.split("-")[1]
        _expect(version in _run([corewise, "--version"], folder), f"--version does not name {version}")
        doctor = json.loads(_run([corewise, "doctor", "--json"], folder))
        _expect("allocation" in doctor and "findings" in doctor, "doctor --json lacks its keys")
        packages = json.dumps(doctor["software"])
        _expect(not re.search(r'"torch": "\d', packages), "the wheel brought a framework along")
        _expect("resnet50" in _run([corewise, "list"], folder), "list does not name resnet50")
        _expect("Usage" in _run([python, "-m", "corewise", "--help"], folder), "--help prints no usage")
        # Templates and styles of the page and the built-in studies travel in the wheel.
        _expect("quick" in _run([corewise, "list", "--json"], folder), "the wheel lacks its studies")
        page = "from corewise.report.page import STYLES, _read_assets; print(len(_read_assets(STYLES)))"
        _expect(int(_run([python, "-c", page], folder)) > 1000, "the wheel lacks the page's styles")


def run_by_runners(wheel: Path) -> None:
    """Run the wheel by uvx and pipx."""
    with tempfile.TemporaryDirectory(prefix="corewise-runners-") as folder:
        python = _make_environment(Path(folder) / "venv")
        _run([python, "-m", "pip", "install", "-q", "uv", "pipx"], folder)
        uvx = [python.parent / "uvx", "--python", sys.executable, "--from", wheel, "corewise", "--version"]
        _expect("corewise" in _run(uvx, folder), "uvx does not run it")
        pipx = [python, "-m", "pipx", "run", "--python", sys.executable, "--spec", wheel, "corewise", "--version"]
        _expect("corewise" in _run(pipx, folder), "pipx does not run it")


def _make_environment(folder: Path) -> Path:
    venv.create(folder, with_pip=True)
    return folder / "bin" / "python"


def _run(command: list[object], folder: str) -> str:
    """The standard output of a command; its error output stands in the message where it fails."""
    names = [str(word) for word in command]
    # The checkout must not stand in for what the wheel lacks.
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    env |= {"XDG_CACHE_HOME": f"{folder}/cache", "PIPX_HOME": f"{folder}/pipx", "UV_TOOL_DIR": f"{folder}/uv"}
    done = subprocess.run(names, cwd=folder, env=env, capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode:
        sys.exit(f"{' '.join(names)} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout


def _expect(is_met: bool, problem: str) -> None:
    if not is_met:
        sys.exit(f"smoke test: {problem}")


if __name__ == "__main__":
    main()
