"""`corewise tune -- COMMAND` with numbers to check and a page to write, on a script that ends by itself."""

import json
import sys
from pathlib import Path

from tests.end_to_end.conftest import HAS_QUICKER, QUICKER, SHORT_SEARCH, Bench

SCRIPT = """
import os, subprocess, time

kept = HAS_QUICKER
other = "LD_PRELOAD" in os.environ or "MALLOC_MMAP_MAX_" in os.environ
if os.fork() == 0:  # a daemon that leaves the tree of its parents
    os.setsid()
    os.execvp("sleep", ["sleep", "1000"])
time.sleep(0.05 if kept else 0.6 if other else 0.15)  # other allocators lose at once
print(f"step 1 loss {2.9 if kept else 2.3:.4f}")
""".replace("HAS_QUICKER", HAS_QUICKER)
FIXED = ("bind=none", "huge_pages=default", "wait_policy=default", "threads=1", "openmp=default")


def test_quicker_but_wrong_is_rejected_the_page_is_written_and_daemons_are_ended(bench: Bench) -> None:
    bench.factory(SCRIPT, "train.py")
    fixed = [part for each in FIXED for part in ("--set", each)]
    options = ("--store", "store", "--budget", "100s", "--json", "--check", "loss {}")
    words = ("tune", *options, "--report", "page.html", *fixed, "--", sys.executable, "train.py")
    done = bench.corewise(*words, before=SHORT_SEARCH)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    [rejected] = [each for each in found["tried"] if each["params"].get("allocator") == QUICKER]
    assert (rejected["outcome"], "is 2.9, the default's 2.3" in rejected["reason"]) == ("rejected", True)
    assert found["best"]["params"].get("allocator") != QUICKER
    assert (found["unit"], found["report"]) == ("runs/s", "page.html")
    assert "tune " in Path(bench.folder, "page.html").read_text()[:20_000]
    assert bench.processes_left() == []
