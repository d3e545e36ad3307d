"""`corewise tune -- COMMAND` for unmodified scripts, which sleep depending on their environment."""

import json
import sys
from typing import Any

import pytest

from corewise.study.tuned_file import read_tuned
from tests.end_to_end.conftest import HAS_QUICKER, QUICKER, SHORT_SEARCH, Bench

SCRIPT = """
import itertools, os, signal, subprocess, sys, time

how, *more = sys.argv[1:]
pause_s = 0.005 if HAS_QUICKER else 0.03
if "deaf" in more:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "forks" in more:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
if how == "fail":
    sys.exit("there is no data")
if how == "report":
    import corewise
open("checkpoint", "x").close()  # fails in a folder of another start
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


def tune(bench: Bench, *arguments: str, budget: str = "100s", options: tuple[str, ...] = ()) -> Any:
    bench.write_factory(SCRIPT, "train.py")
    fixed = [part for each in FIXED for part in ("--set", each)]
    common = ("--store", "store", "--budget", budget, "--json", *fixed, *options)
    command = ("tune", *common, "--", sys.executable, "train.py", *arguments)
    return bench.run(*command, before=SHORT_SEARCH)


@pytest.mark.parametrize(
    ("arguments", "options"),
    [(("report", "forks", "deaf"), ()), (("print",), ("--throughput", "{} img/s"))],
    ids=["reports", "output"],
)
def test_the_faster_environment_is_found_and_nothing_is_left(
    bench: Bench, arguments: tuple[str, ...], options: tuple[str, ...]
) -> None:
    done = tune(bench, *arguments, options=options)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["best"]["params"]["allocator"] == QUICKER
    assert result["speedup"] > 1.5
    written = read_tuned(bench.folder / "tuned.yaml")
    assert written.subject.command == (sys.executable, "train.py", *arguments)
    assert (written.params["allocator"], written.params["processes"]) == (QUICKER, 1)
    # Each start had a new folder.
    assert not (bench.folder / "checkpoint").exists()
    assert bench.find_processes() == []


@pytest.mark.slow
def test_a_script_without_progress_is_timed_as_a_whole(bench: Bench) -> None:
    done = tune(bench, "end", options=("--set", "allocator=default"))
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["verdict"] == "no difference"
    # The unit is runs per second; a run has 11 pauses.
    assert 0 < result["default"]["throughput"] < 1 / 0.3


@pytest.mark.slow
def test_the_record_of_a_script_names_the_processes_that_it_left_behind(bench: Bench) -> None:
    done = tune(bench, "end", "forks", options=("--set", "allocator=default"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert bench.find_processes() == []
    [notes] = [record["notes"] for record in bench.read_records()]
    assert notes == ["the workload left processes behind, which were killed: 1 × python"]


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("fail",), (), "exit code 1): there is no data"),
        (("end",), ("--throughput", "{} img/s"), "anything that matches --throughput"),
        (("print",), ("--throughput", "img/s"), "mark the number with {}"),
        (("print",), ("--throughput", "({} img/s"), "not a regular expression"),
        (("report",), ("--distributed",), "{batch_per_rank}"),
        (("report", "{batch_per_rank}"), (), "give it with --batch"),
    ],
)
def test_a_script_that_cannot_be_tuned_is_reported_with_code_2(
    bench: Bench, arguments: tuple[str, ...], options: tuple[str, ...], message: str
) -> None:
    done = tune(bench, *arguments, options=options)
    assert done.returncode == 2, done.stdout + done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_command_that_does_not_exist_is_reported(bench: Bench) -> None:
    done = bench.run("tune", "--budget", "10s", "--", "./no-such-program")
    assert done.returncode == 2
    assert "cannot start ./no-such-program" in done.stderr


@pytest.mark.slow
def test_a_command_that_starts_to_fail_is_reported_and_not_called_equal(bench: Bench) -> None:
    """The fifth start, during the race of the second setting, and all later ones fail."""
    bench.write_factory(
        """
        import pathlib, sys
        count = pathlib.Path(__file__).with_name("count")
        count.write_text(count.read_text() + "." if count.exists() else ".")
        sys.exit("the disk is full" if len(count.read_text()) > 4 else 0)
        """,
        "fails.py",
    )
    fixed = [part for each in FIXED for part in ("--set", each)]
    arguments = ("tune", "--budget", "100s", *fixed, "--", sys.executable, "fails.py")
    done = bench.run(*arguments, before=SHORT_SEARCH)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "failed in a fresh start: it failed (exit code 1): the disk is full" in done.stderr
    assert "Traceback" not in done.stderr
