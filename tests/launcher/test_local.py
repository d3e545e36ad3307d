"""Command lines are values, quoted wherever they reach a shell."""

import shlex
from pathlib import Path

from corewise.launcher.local import hand_command, probe_command, serve_command, shell_line
from corewise.spec.trial import Protocol, RankPlacement, Trial

TRIAL = Trial(
    trial_id="abc",
    params={},
    protocol=Protocol(),
    ranks=(RankPlacement((0, 1)),),
    env={"OMP_NUM_THREADS": "2"},
    python=("apptainer", "exec", "my image.sif", "python3"),
)


def test_a_warm_parent_is_told_its_runtime_and_its_cpus() -> None:
    words = serve_command(("python",), Path("w.pyz"), runtime="torch", cpus=(2, 3), cold=False)
    assert words == ("python", "w.pyz", "serve", "--runtime", "torch", "--cpus", "2,3")
    cold = serve_command(("python",), Path("w.pyz"), runtime="torch", cpus=(), cold=True)
    assert cold[-1] == "--cold"


def test_the_prefix_comes_before_the_interpreter() -> None:
    assert probe_command(TRIAL.python, Path("w.pyz"))[:4] == ("apptainer", "exec", "my image.sif", "python3")


def test_a_shell_reads_back_the_very_words() -> None:
    nasty = "a b; rm -rf $HOME `x` 'y' \"z\""
    words = hand_command(TRIAL, Path("w.pyz"), nasty, "out dir")
    line = shell_line(words, {"NAME": nasty}, {})
    assert shlex.split(line) == ["env", f"NAME={nasty}", *words]


def test_controlled_variables_of_the_outer_environment_are_unset() -> None:
    line = shell_line(
        ["run"], {"OMP_NUM_THREADS": "2"}, {"OMP_DYNAMIC": "1", "OMP_NUM_THREADS": "9", "HOME": "/"}
    )
    assert line == "env -u OMP_DYNAMIC OMP_NUM_THREADS=2 run"
