"""Studies run by the command line; a test fails if it leaves a process behind."""

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from corewise.launch.environment import CONTROLLED_NAMES, CONTROLLED_PREFIXES
from corewise.machine.software import find_library
from corewise.store.export import export_records
from corewise.store.store import Store

from .warm_command import WarmCommand

# Disturbed runs are not repeated, so the load of the machine does not affect the tests.
QUICK_PROTOCOL = (
    "{min_runs: 2, max_runs: 2, min_samples: 3, min_sample_s: 0.01, max_warmup_s: 0.2, timeout_s: 60, "
    "max_repeats_disturbed: 0}"
)

# Shortens searches: shorter samplings and fewer confirmation runs, whatever the budget.
SHORT_SEARCH = """
from corewise.tuning import session
from corewise.tuning.confirm import confirmation_runs
from corewise.tuning.scripts import script_arena, script_session
from corewise.tuning.search import live_arena
shortest = confirmation_runs.ConfirmationEffort(
    num_contender_runs=4, num_reference_runs=3, sample_s=0.2, min_samples=3, warm_up_s=0.3
)
confirmation_runs.EFFORTS = session.EFFORTS = (shortest,) * len(confirmation_runs.EFFORTS)
live_arena.SAMPLE_S, live_arena.WARM_UP_S = 0.2, 0.3
script_arena.SAMPLE_S = script_session.SAMPLE_S = 0.25
script_session.MAX_STARTS = script_session.MIN_STARTS
"""

# The allocator of the hand setting, where a search starts, and how a process detects it.
QUICKER = "retain" if find_library("tcmalloc", python_prefix=Path(sys.prefix)) is None else "tcmalloc"
HAS_QUICKER = {
    "retain": 'os.environ.get("MALLOC_MMAP_MAX_") == "0"',
    "tcmalloc": '"tcmalloc" in os.environ.get("LD_PRELOAD", "")',
}[QUICKER]


# Variables of the user that a launch would override with a message.
USER_VARIABLES = {
    name: value
    for name, value in os.environ.items()
    if name.startswith(CONTROLLED_PREFIXES) or name in CONTROLLED_NAMES
}


@dataclass
class Bench:
    """A working folder, and the command line with a mark that its processes inherit."""

    folder: Path
    command: WarmCommand
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def env(self) -> dict[str, str]:
        environment = {name: value for name, value in os.environ.items() if USER_VARIABLES.get(name) != value}
        return {**environment, "COREWISE_TEST_MARK": self.mark, "COLUMNS": "200"}

    def build_command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "corewise", *arguments]

    def run(self, *arguments: str, timeout: float = 300, before: str = "") -> "subprocess.CompletedProcess[str]":
        self.start(*arguments, before=before)
        return self.command.wait(timeout)

    def start(self, *arguments: str, before: str = "") -> int:
        """Start a command and return its pid; `command.wait()` waits for it."""
        return self.command.start(arguments, self.folder, self.env, before)

    def write_study(self, text: str, name: str = "study.yaml") -> str:
        (self.folder / name).write_text(dedent(text))
        return name

    def write_factory(self, body: str, name: str = "own.py") -> str:
        (self.folder / name).write_text(dedent(body))
        return name

    def read_records(self, store: str = "store") -> list[dict[str, Any]]:
        """Read the records as `corewise export --format json` prints them."""
        exported = self.folder / "exported.json"
        export_records(Store.open(self.folder / store, create=False), "json", exported)
        return list(json.loads(exported.read_text()))

    def find_processes(self) -> list[str]:
        """List the command lines of running processes that carry the mark."""
        command_lines = []
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit() or int(folder.name) == os.getpid():
                continue
            try:
                if f"COREWISE_TEST_MARK={self.mark}".encode() in (folder / "environ").read_bytes():
                    command_lines.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
        return command_lines


@pytest.fixture(scope="session")
def warm_command() -> Iterator[WarmCommand]:
    command = WarmCommand()
    yield command
    command.close()


@pytest.fixture
def bench(tmp_path: Path, warm_command: WarmCommand) -> Iterator[Bench]:
    """Create a bench; the test fails if it leaves a process behind."""
    made = Bench(tmp_path, warm_command)
    yield made
    assert made.find_processes() == []
