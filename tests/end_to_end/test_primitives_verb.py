"""`corewise primitives` by the real command line: the answer, its page, and every mistake."""

import contextlib
import json
import os
import pty
import signal
import subprocess
import time
from typing import Any

import pytest

from tests.end_to_end.conftest import Bench

OWN = """
import torch
from torch import nn

def make(batch, mode, width=16):
    layers = [nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(1)]
    return nn.Sequential(*layers, nn.Linear(width, 4)), (torch.randn(batch, 3, 16, 16),)

def step(batch, mode):
    return {"step": lambda: None}

def broken(batch, mode):
    return nn.Linear(8, 4), (torch.randn(batch, 9),)

def endless(batch, mode):
    import time
    time.sleep(600)
"""


def test_a_model_of_ones_own_is_taken_apart_with_a_page(bench: Bench) -> None:
    name = bench.factory(OWN)
    words = ("--batch", "2", "--threads", "1", "--rounds", "1", "--args", "width=8", "--report", "page.html")
    done = bench.corewise("primitives", f"{name}:make", *words, "--json")
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    problems = {each["problem"] for each in told["primitives"]}
    assert "mb2ic3ih16oc8oh16kh3ph1" in problems
    assert told["params"]["threads"] == told["num_threads"] == 1
    assert told["num_checked"] == len(told["primitives"])
    assert told["sum_over_step"] > 0
    assert told["summary"]
    assert told["next"][-1] == f"corewise tune {name}:make --mode infer --batch 2 --args width=8"
    page = (bench.folder / "page.html").read_text()
    assert "The primitives of own.py:make" in page


def test_a_terminal_shows_the_rounds_while_they_are_measured(bench: Bench) -> None:
    words = bench.words(
        "primitives", f"{bench.factory(OWN)}:make", "--batch", "2", "--threads", "1", "--rounds", "2"
    )
    terminal, end = pty.openpty()
    with subprocess.Popen(
        words, cwd=bench.folder, env=bench.env, stdout=subprocess.DEVNULL, stderr=end
    ) as running:
        os.close(end)
        told = b""
        with contextlib.suppress(OSError):  # the terminal's way to say that nobody writes any more
            while part := os.read(terminal, 4096):
                told += part
    os.close(terminal)
    assert running.returncode == 0, told
    for line in (b"importing torch", b"checking the primitives", b"measuring, round 1 of 2", b"round 2 of 2"):
        assert line in told


def test_an_unknown_model_is_told_with_the_nearest(bench: Bench) -> None:
    done = bench.corewise("primitives", "resnet51")
    assert done.returncode == 2
    assert "did you mean 'resnet50'?" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("factory", "code", "told"),
    [
        ("step", 2, "the factory returns a step, not a module"),
        ("broken", 1, "mat1 and mat2 shapes cannot be multiplied"),
    ],
)
def test_what_cannot_be_taken_apart_says_why(bench: Bench, factory: str, code: int, told: str) -> None:
    name = bench.factory(OWN)
    done = bench.corewise("primitives", f"{name}:{factory}", "--threads", "1")
    assert (done.returncode, told in done.stderr) == (code, True), done.stderr
    assert "Traceback" not in done.stderr


def test_an_interrupted_measurement_leaves_no_process(bench: Bench) -> None:
    name = bench.factory(OWN)
    with subprocess.Popen(
        bench.words("primitives", f"{name}:endless", "--threads", "1"),
        cwd=bench.folder,
        env=bench.env,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        until = time.monotonic() + 60
        while len(bench.processes_left()) < 3 and time.monotonic() < until:  # ours, the warm parent, the rank
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        _, told = running.communicate(timeout=60)
    assert running.returncode == 130
    assert told.strip() == "corewise: interrupted; nothing was kept"
