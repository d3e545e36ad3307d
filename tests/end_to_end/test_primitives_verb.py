"""`corewise primitives` on the command line: its result, its page and its errors."""

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


def test_a_users_model_is_split_into_primitives_with_a_page(bench: Bench) -> None:
    name = bench.write_factory(OWN)
    options = ("--batch", "2", "--threads", "1", "--rounds", "1", "--args", "width=8", "--report", "page.html")
    done = bench.run("primitives", f"{name}:make", *options, "--json")
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    problems = {each["problem"] for each in answer["primitives"]}
    assert "mb2ic3ih16oc8oh16kh3ph1" in problems
    assert answer["params"]["threads"] == answer["num_threads"] == 1
    assert answer["num_checked"] == len(answer["primitives"])
    assert answer["sum_over_step"] > 0
    assert answer["summary"]
    assert answer["next"][-1] == f"corewise tune {name}:make --mode infer --batch 2 --args width=8"
    page = (bench.folder / "page.html").read_text()
    assert "The primitives of own.py:make" in page


@pytest.mark.slow
def test_a_terminal_shows_the_rounds_while_they_are_measured(bench: Bench) -> None:
    command = bench.build_command(
        "primitives", f"{bench.write_factory(OWN)}:make", "--batch", "2", "--threads", "1", "--rounds", "2"
    )
    terminal, end = pty.openpty()
    with subprocess.Popen(command, cwd=bench.folder, env=bench.env, stdout=subprocess.DEVNULL, stderr=end) as running:
        os.close(end)
        screen = b""
        # Reading fails after the last writer has closed the terminal.
        with contextlib.suppress(OSError):
            while part := os.read(terminal, 4096):
                screen += part
    os.close(terminal)
    assert running.returncode == 0, screen
    for line in (b"importing torch", b"checking the primitives", b"measuring, round 1 of 2", b"round 2 of 2"):
        assert line in screen


def test_an_unknown_model_is_reported_with_the_nearest(bench: Bench) -> None:
    done = bench.run("primitives", "resnet51")
    assert done.returncode == 2
    assert "did you mean 'resnet50'?" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("factory", "code", "message"),
    [
        ("step", 2, "the factory returns a step, not a module"),
        ("broken", 1, "mat1 and mat2 shapes cannot be multiplied"),
    ],
)
def test_a_model_that_cannot_be_split_is_reported(bench: Bench, factory: str, code: int, message: str) -> None:
    name = bench.write_factory(OWN)
    done = bench.run("primitives", f"{name}:{factory}", "--threads", "1")
    assert (done.returncode, message in done.stderr) == (code, True), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_an_interrupted_measurement_leaves_no_process_and_no_folder(
    number: signal.Signals, code: int, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = bench.write_factory(OWN)
    temporary = bench.folder / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    with subprocess.Popen(
        bench.build_command("primitives", f"{name}:endless", "--threads", "1"),
        cwd=bench.folder,
        env=bench.env,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        until = time.monotonic() + 60
        # Wait for the command, the keeper, the warm parent and the rank.
        while len(bench.find_processes()) < 4 and time.monotonic() < until:
            time.sleep(0.05)
        assert list(temporary.glob("corewise-*"))
        running.send_signal(number)
        _, errors = running.communicate(timeout=60)
    assert running.returncode == code
    assert errors.strip() == "corewise: interrupted; nothing was saved"
    assert list(temporary.glob("corewise-*")) == []
