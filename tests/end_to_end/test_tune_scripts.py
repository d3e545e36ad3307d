"""`corewise tune -- COMMAND`: untouched scripts that sleep by what they find in their environment."""

import json
import sys
from typing import Any

import pytest

from corewise.spec.tuned import read_tuned
from tests.end_to_end.conftest import HAS_QUICKER, QUICKER, SHORT_SEARCH, Bench

SCRIPT = """
import itertools, os, signal, subprocess, sys, time

how, *more = sys.argv[1:]
pause_s = 0.005 if HAS_QUICKER else 0.03  # a busy machine wakes both late
if "deaf" in more:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "forks" in more:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
if how == "fail":
    sys.exit("there is no data")
if how == "report":
    import corewise
open("checkpoint", "x").close()  # fails where another start has been
for i in itertools.count():
    time.sleep(pause_s)
    if how == "report":
        corewise.report_progress(samples=4)
    elif how == "print" and i % 5 == 0:
        print(f"epoch 0: {4 / pause_s:,.1f} img/s")
    elif how == "end" and i == 10:
        break
""".replace("HAS_QUICKER", HAS_QUICKER)
FIXED = ("bind=none", "huge_pages=default", "wait_policy=default", "threads=1", "openmp=default")


def tune(bench: Bench, *words: str, budget: str = "100s", options: tuple[str, ...] = ()) -> Any:
    bench.factory(SCRIPT, "train.py")
    fixed = [part for each in FIXED for part in ("--set", each)]
    common = ("--store", "store", "--budget", budget, "--json", *fixed, *options)
    words = ("tune", *common, "--", sys.executable, "train.py", *words)
    return bench.corewise(*words, before=SHORT_SEARCH)


@pytest.mark.parametrize(
    ("words", "options"),
    [(("report", "forks", "deaf"), ()), (("print",), ("--throughput", "{} img/s"))],
    ids=["reports", "output"],
)
def test_the_quicker_environment_is_found_and_nothing_is_left(
    bench: Bench, words: tuple[str, ...], options: tuple[str, ...]
) -> None:
    done = tune(bench, *words, options=options)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["best"]["params"]["allocator"] == QUICKER
    assert found["speedup"] > 1.5
    written = read_tuned(bench.folder / "tuned.yaml")
    assert written.subject.command == (sys.executable, "train.py", *words)
    assert (written.params["allocator"], written.params["processes"]) == (QUICKER, 1)
    assert not (bench.folder / "checkpoint").exists()  # each start had a folder of its own
    assert bench.processes_left() == []


def test_a_script_that_tells_nothing_is_timed_as_a_whole(bench: Bench) -> None:
    done = tune(bench, "end", options=("--set", "allocator=default"))
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["verdict"] == "no difference"
    assert 0 < found["default"]["throughput"] < 1 / 0.3  # runs per second: 11 pauses


@pytest.mark.parametrize(
    ("words", "options", "told"),
    [
        (("fail",), (), "exit code 1): there is no data"),
        (("end",), ("--throughput", "{} img/s"), "nothing that matches --throughput"),
        (("print",), ("--throughput", "img/s"), "put the number in parentheses"),
        (("print",), ("--throughput", "({} img/s"), "not a regular expression"),
        (("report",), ("--distributed",), "{batch_per_rank}"),
        (("report", "{batch_per_rank}"), (), "give it with --batch"),
    ],
)
def test_a_script_that_cannot_be_tuned_is_told_with_code_2(
    bench: Bench, words: tuple[str, ...], options: tuple[str, ...], told: str
) -> None:
    done = tune(bench, *words, options=options)
    assert done.returncode == 2, done.stdout + done.stderr
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_a_command_that_does_not_exist_is_told(bench: Bench) -> None:
    done = bench.corewise("tune", "--budget", "10s", "--", "./no-such-program")
    assert done.returncode == 2
    assert "cannot start ./no-such-program" in done.stderr


def test_a_command_that_begins_to_fail_is_told_and_not_called_equal(bench: Bench) -> None:
    """Its fifth start fails, while the second setting is raced, and so do all that follow."""
    bench.factory(
        """
        import pathlib, sys
        count = pathlib.Path(__file__).with_name("count")
        count.write_text(count.read_text() + "." if count.exists() else ".")
        sys.exit("the disk is full" if len(count.read_text()) > 4 else 0)
        """,
        "fails.py",
    )
    fixed = [part for each in FIXED for part in ("--set", each)]
    words = ("tune", "--budget", "100s", *fixed, "--", sys.executable, "fails.py")
    done = bench.corewise(*words, before=SHORT_SEARCH)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "failed in a fresh run: it failed (exit code 1): the disk is full" in done.stderr
    assert "Traceback" not in done.stderr
