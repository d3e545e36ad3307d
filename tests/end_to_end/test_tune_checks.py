"""`corewise tune -- COMMAND` with a numerical check and a report, for a script that runs to its end."""

import json
import sys
from pathlib import Path

import pytest

from tests.end_to_end.conftest import HAS_QUICKER, QUICKER, SHORT_SEARCH, Bench

SCRIPT = """
import os, subprocess, time

is_fast = HAS_QUICKER
other = "LD_PRELOAD" in os.environ or "MALLOC_MMAP_MAX_" in os.environ
if os.fork() == 0:  # a daemon that leaves the tree of its parents
    os.setsid()
    os.execvp("sleep", ["sleep", "1000"])
time.sleep(0.05 if is_fast else 0.6 if other else 0.15)
print(f"step 1 loss {2.9 if is_fast else 2.3:.4f}")
""".replace("HAS_QUICKER", HAS_QUICKER)
FIXED = ("bind=none", "huge_pages=default", "wait_policy=default", "threads=1", "openmp=default")


@pytest.mark.slow
def test_faster_but_wrong_is_rejected_the_report_is_written_and_daemons_are_terminated(bench: Bench) -> None:
    bench.write_factory(SCRIPT, "train.py")
    fixed = [part for each in FIXED for part in ("--set", each)]
    options = ("--store", "store", "--budget", "100s", "--json", "--check", "loss {}")
    arguments = ("tune", *options, "--report", "page.html", *fixed, "--", sys.executable, "train.py")
    done = bench.run(*arguments, before=SHORT_SEARCH)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    [rejected] = [each for each in result["tried"] if each["params"].get("allocator") == QUICKER]
    assert (rejected["outcome"], "is 2.9, but 2.3 for the default" in rejected["reason"]) == ("rejected", True)
    assert result["best"]["params"].get("allocator") != QUICKER
    assert (result["unit"], result["report"]) == ("runs/s", "page.html")
    assert "tune " in Path(bench.folder, "page.html").read_text()[:20_000]
    assert bench.find_processes() == []
