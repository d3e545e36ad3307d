"""Command lines that start the measured side on this node; words only, nothing is run here."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from corewise.dataflow.native.switch import is_switched_off
from corewise.launcher.environment import is_controlled
from corewise.spec.trial import Trial

_BUILD = (
    "import sys; sys.path.insert(0, sys.argv[1]); from corewise.dataflow.native.__main__ import main; "
    "sys.exit(main())"
)
# The options of `corewise launch` whose name is not that of the parameter.
_LAUNCH_OPTIONS = {"placement": "policy"}


def launch_command(
    params: Mapping[str, Any], command: Sequence[str], environment: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """The words of `corewise launch` that start a command with these parameters; flags only where true."""
    words = ["corewise", "launch"]
    for name, value in params.items():
        option = "--" + _LAUNCH_OPTIONS.get(name, name).replace("_", "-")
        if value is True:
            words.append(option)
        elif value not in (False, None):
            words += [option, str(value)]
    for name, value in (environment or {}).items():
        words += ["--env", f"{name}={value}"]
    return (*words, "--", *command)


def serve_command(
    python: Sequence[str], worker: Path, *, runtime: str, cpus: Sequence[int], cold: bool
) -> tuple[str, ...]:
    """The words that start a warm parent confined to `cpus`."""
    words = [*python, str(worker), "serve", "--runtime", runtime, "--cpus", ",".join(map(str, cpus))]
    return tuple([*words, "--cold"] if cold else words)


def probe_command(python: Sequence[str], worker: Path) -> tuple[str, ...]:
    """The words that print an interpreter's versions."""
    return (*python, str(worker), "probe")


def build_command(python: Sequence[str], worker: Path) -> tuple[str, ...]:
    """The words that build the C++ part of the measured side; the worker itself knows nothing of it."""
    return (*python, "-c", _BUILD, str(worker))


def may_build() -> bool:
    """Whether the user wants that part at all."""
    return not is_switched_off()


def hand_command(trial: Trial, worker: Path, trial_file: str, out_dir: str) -> tuple[str, ...]:
    """The words that run a trial once from a cold start."""
    return (*trial.python, str(worker), "run", trial_file, "--out", out_dir)


def shell_line(words: Sequence[str], env: Mapping[str, str], outer: Mapping[str, str]) -> str:
    """One line for a shell, every word quoted, controlled variables of the outer environment unset."""
    unset = [
        part for name in sorted(outer) if is_controlled(name) and name not in env for part in ("-u", name)
    ]
    assignments = [f"{name}={value}" for name, value in sorted(env.items())]
    prefix = ["env", *unset, *assignments] if unset or assignments else []
    return shlex.join([*prefix, *words])
