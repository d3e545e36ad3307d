"""A signal ends every verb without a traceback, even while its modules are being imported."""

import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from corewise.cli.app import VERBS

# Runs the command line and sends a signal to itself when a module is imported.
PROGRAM = """
import os, signal, sys

number, module, times = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])

class Sender:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            for _ in range(times):
                os.kill(os.getpid(), number)

signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
sys.meta_path.insert(0, Sender())
sys.argv = ["corewise", *sys.argv[4:]]
from corewise.cli.main import main
main()
"""
INTERRUPTED = "corewise: interrupted\n"


def interrupt(
    number: signal.Signals, module: str, arguments: Iterable[str], folder: Path, times: int = 1
) -> tuple[int, str, str]:
    """Return the exit code and the outputs of a command that is interrupted when it imports a module."""
    command = [sys.executable, "-c", PROGRAM, str(int(number)), module, str(times), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("verb", [*VERBS, "--help"])
def test_an_interrupt_during_the_first_imports_ends_silently(verb: str, tmp_path: Path) -> None:
    assert interrupt(signal.SIGINT, "typer", [verb], tmp_path) == (-signal.SIGINT, "", "")


@pytest.mark.parametrize("verb", VERBS)
def test_an_interrupt_during_the_import_of_a_verb_ends_with_one_line(verb: str, tmp_path: Path) -> None:
    ended = interrupt(signal.SIGINT, f"corewise.cli.{verb}", [verb], tmp_path)
    assert ended == (130, "", INTERRUPTED)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGHUP, 129)], ids=lambda each: str(each)
)
def test_a_signal_within_a_verb_ends_with_one_line(number: signal.Signals, code: int, tmp_path: Path) -> None:
    ended = interrupt(number, "corewise.study.study", ["plan", "quick"], tmp_path)
    assert ended == (code, "", INTERRUPTED)


def test_signals_that_follow_at_once_do_not_disturb_the_cleanup(tmp_path: Path) -> None:
    """A closed terminal sends SIGHUP twice: the shell does, and the kernel does."""
    ended = interrupt(signal.SIGHUP, "corewise.study.study", ["plan", "quick"], tmp_path, times=3)
    assert ended == (129, "", INTERRUPTED)


def test_an_ignored_signal_stays_ignored() -> None:
    code = (
        "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); exec("
        + repr(PROGRAM.replace("signal.signal(signal.SIGHUP, signal.SIG_DFL)", ""))
        + ")"
    )
    command = [sys.executable, "-c", code, str(int(signal.SIGHUP)), "corewise.study.study", "1", "plan", "quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
