"""Command lines that start the measured side, quoted where a shell reads them."""

import shlex
from pathlib import Path

from corewise.launch.worker_commands import (
    build_probe_command,
    build_run_command,
    build_serve_command,
    format_shell_line,
)
from corewise.measured.parameters import TrialParameters
from corewise.measured.trial import Protocol, RankPlacement, Trial

TRIAL = Trial(
    trial_id="abc",
    params=TrialParameters(),
    protocol=Protocol(),
    ranks=(RankPlacement((0, 1)),),
    env={"OMP_NUM_THREADS": "2"},
    python=("apptainer", "exec", "my image.sif", "python3"),
)


def test_the_command_of_a_warm_parent_names_its_runtime_and_cpus() -> None:
    command = build_serve_command(("python",), Path("w.pyz"), runtime="torch", cpus=(2, 3), cold=False)
    assert command == ("python", "w.pyz", "serve", "--runtime", "torch", "--cpus", "2,3")
    cold = build_serve_command(("python",), Path("w.pyz"), runtime="torch", cpus=(), cold=True)
    assert cold[-1] == "--cold"


def test_the_prefix_comes_before_the_interpreter() -> None:
    assert build_probe_command(TRIAL.python, Path("w.pyz"))[:4] == ("apptainer", "exec", "my image.sif", "python3")


def test_a_shell_reads_back_the_same_command() -> None:
    nasty = "a b; rm -rf $HOME `x` 'y' \"z\""
    command = build_run_command(TRIAL, Path("w.pyz"), nasty, "out dir")
    line = format_shell_line(command, {"NAME": nasty}, {})
    assert shlex.split(line) == ["env", f"NAME={nasty}", *command]


def test_controlled_variables_of_the_outer_environment_are_unset() -> None:
    line = format_shell_line(
        ["run"], {"OMP_NUM_THREADS": "2"}, {"OMP_DYNAMIC": "1", "OMP_NUM_THREADS": "9", "HOME": "/"}
    )
    assert line == "env -u OMP_DYNAMIC OMP_NUM_THREADS=2 run"
