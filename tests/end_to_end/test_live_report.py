"""The report page of a running study, with real runs and an interrupt."""

import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.end_to_end.conftest import Bench

STUDY = """
question: How long does a nap last?
workload: own.py:factory
mode: infer
runtime: numpy
axes: {args.nap_ms: [1, 2]}
fixed: {threads: 1, batch: 1}
protocol: {min_runs: 2, max_runs: 2, min_samples: 3, min_sample_s: 0.01, max_warmup_s: 0.1, timeout_s: 60,
           max_repeats_disturbed: 0}
"""
NAP = """
import os, time
def factory(batch, mode, nap_ms):
    if nap_ms == 2:
        while os.path.exists("hold"):
            time.sleep(0.05)
    return {"step": lambda: time.sleep(nap_ms / 1000), "samples_per_step": 1}
"""
RELOADS = 'id="live"'


def test_a_page_reloads_only_while_its_study_runs(bench: Bench) -> None:
    bench.write_factory(NAP)
    (bench.folder / "hold").touch()
    study = bench.write_study(STUDY)
    command = bench.build_command("run", study, "--store", "store", "-o", "page.html", "-q")
    run = subprocess.Popen(command, cwd=bench.folder, env=bench.env, stderr=subprocess.PIPE, text=True)
    page = bench.folder / "page.html"
    try:
        wait_for(page)
        first = page.read_text()
        assert RELOADS in first
        assert "running: 0 of 2 trials done" in first
    finally:
        run.send_signal(signal.SIGINT)
        _, errors = run.communicate(timeout=300)
    assert run.returncode == 130
    assert "Run the same command again to resume" in errors
    last = page.read_text()
    assert RELOADS not in last
    assert "stopped: 0 of 2 trials done" in last
    (bench.folder / "hold").unlink()
    done = bench.run("run", study, "--store", "store", "--report")
    assert done.returncode == 0, done.stderr
    assert "Report: store/report.html" in done.stdout
    finished = (bench.folder / "store/report.html").read_text()
    assert "How long does a nap last?" in finished
    assert RELOADS not in finished


def test_an_unwritable_page_is_reported_before_anything_is_measured(bench: Bench) -> None:
    bench.write_factory(NAP)
    done = bench.run("run", bench.write_study(STUDY), "--store", "store", "-o", "no/such/folder/page.html")
    assert done.returncode == 2
    assert "no/such/folder/page.html" in done.stderr
    assert not (bench.folder / "store/records").exists() or not bench.read_records()


def wait_for(path: Path) -> None:
    for _ in range(600):
        if path.exists():
            return
        time.sleep(0.1)
    pytest.fail(f"{path} did not appear")
