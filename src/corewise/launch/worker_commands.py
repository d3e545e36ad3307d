"""Builds the command lines that start the measured side on this node. Runs nothing."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from corewise.accelerate.kernels.switch import is_native_disabled
from corewise.launch.environment import is_controlled
from corewise.measured.trial import Trial

# With -c, Python would import modules from the working directory, which may belong to someone else.
_BUILD = (
    "import sys; sys.path[:] = [sys.argv[1], *filter(None, sys.path)]; "
    "from corewise.accelerate.kernels.__main__ import main; sys.exit(main())"
)
# Parameter -> option of `corewise launch`, where the names differ.
_LAUNCH_OPTIONS = {"placement": "policy"}


def build_launch_command(
    params: Mapping[str, Any], command: Sequence[str], environment: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """Build the `corewise launch` command that starts a command with these parameters."""
    arguments = ["corewise", "launch"]
    for name, value in params.items():
        option = "--" + _LAUNCH_OPTIONS.get(name, name).replace("_", "-")
        if value is True:
            arguments.append(option)
        elif value not in (False, None):
            arguments += [option, str(value)]
    for name, value in (environment or {}).items():
        arguments += ["--env", f"{name}={value}"]
    return (*arguments, "--", *command)


def build_serve_command(
    python: Sequence[str], worker: Path, *, runtime: str, cpus: Sequence[int], cold: bool
) -> tuple[str, ...]:
    """Build the command that starts a warm parent confined to `cpus`."""
    arguments = [*python, str(worker), "serve", "--runtime", runtime, "--cpus", ",".join(map(str, cpus))]
    return tuple([*arguments, "--cold"] if cold else arguments)


def build_probe_command(python: Sequence[str], worker: Path) -> tuple[str, ...]:
    """Build the command that prints an interpreter's versions."""
    return (*python, str(worker), "probe")


def build_compile_command(python: Sequence[str], worker: Path) -> tuple[str, ...]:
    """Build the command that compiles the C++ part of the measured side."""
    return (*python, "-c", _BUILD, str(worker))


def should_build_native() -> bool:
    """Return True unless the user has disabled the C++ part."""
    return not is_native_disabled()


def build_run_command(trial: Trial, worker: Path, trial_file: str, out_dir: str) -> tuple[str, ...]:
    """Build the command that runs a trial once from a cold start."""
    return (*trial.python, str(worker), "run", trial_file, "--out", out_dir)


def format_shell_line(command: Sequence[str], env: Mapping[str, str], outer: Mapping[str, str]) -> str:
    """Format a quoted shell line that unsets the controlled variables of the outer environment."""
    unset = [part for name in sorted(outer) if is_controlled(name) and name not in env for part in ("-u", name)]
    assignments = [f"{name}={value}" for name, value in sorted(env.items())]
    prefix = ["env", *unset, *assignments] if unset or assignments else []
    return shlex.join([*prefix, *command])
