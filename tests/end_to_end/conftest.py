"""Real studies run by the real command line; every process they start is accounted for."""

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

from corewise.launcher.environment import CONTROLLED_NAMES, CONTROLLED_PREFIXES
from corewise.machine.libraries import find_library
from corewise.store.export import export_records
from corewise.store.store import Store

from .warm_command import WarmCommand

# A run that others disturb is not measured again: the load of the machine decides nothing here.
QUICK_PROTOCOL = (
    "{min_runs: 2, max_runs: 2, min_samples: 3, min_sample_s: 0.01, max_warmup_s: 0.2, timeout_s: 60, "
    "max_repeats_disturbed: 0}"
)

# Searches by shorter samplings and fewer fresh runs; what they use of their budget does not grow with it.
SHORT_SEARCH = """
from corewise.tuner import confirm, live, script_arena, script_session, session
least = confirm.Effort(num_main=4, num_beside=3, sample_s=0.2, min_samples=3, warm_up_s=0.3)
confirm.EFFORTS = session.EFFORTS = (least,) * len(confirm.EFFORTS)
live.SAMPLE_S, live.WARM_UP_S = 0.2, 0.3
script_arena.SAMPLE_S = script_session.SAMPLE_S = 0.25
script_session.MAX_STARTS = script_session.MIN_STARTS
"""

# The allocator of the hand setting, where a search begins, and how a process sees that it has it.
QUICKER = "retain" if find_library("tcmalloc", python_prefix=Path(sys.prefix)) is None else "tcmalloc"
HAS_QUICKER = {
    "retain": 'os.environ.get("MALLOC_MMAP_MAX_") == "0"',
    "tcmalloc": '"tcmalloc" in os.environ.get("LD_PRELOAD", "")',
}[QUICKER]


# What the user had set of all that a launch overrides aloud.
USERS = {
    name: value
    for name, value in os.environ.items()
    if name.startswith(CONTROLLED_PREFIXES) or name in CONTROLLED_NAMES
}


@dataclass
class Bench:
    """A folder to work in, and the command line under a mark that its processes inherit."""

    folder: Path
    command: WarmCommand
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def env(self) -> dict[str, str]:
        ours = {name: value for name, value in os.environ.items() if USERS.get(name) != value}
        return {**ours, "COREWISE_TEST_MARK": self.mark, "COLUMNS": "200"}

    def words(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "corewise", *words]

    def corewise(
        self, *words: str, timeout: float = 300, before: str = ""
    ) -> "subprocess.CompletedProcess[str]":
        self.start(*words, before=before)
        return self.command.wait(timeout)

    def start(self, *words: str, before: str = "") -> int:
        """The process of a command that `command.wait()` waits for."""
        return self.command.start(words, self.folder, self.env, before)

    def study(self, text: str, name: str = "study.yaml") -> str:
        (self.folder / name).write_text(dedent(text))
        return name

    def factory(self, body: str, name: str = "own.py") -> str:
        (self.folder / name).write_text(dedent(body))
        return name

    def records(self, store: str = "store") -> list[dict[str, Any]]:
        """What `corewise export --format json` prints, without a process for it."""
        exported = self.folder / "exported.json"
        export_records(Store.open(self.folder / store, create=False), "json", exported)
        return list(json.loads(exported.read_text()))

    def processes_left(self) -> list[str]:
        """Command lines of living processes that carry the mark."""
        found = []
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit() or int(folder.name) == os.getpid():
                continue
            try:
                if f"COREWISE_TEST_MARK={self.mark}".encode() in (folder / "environ").read_bytes():
                    found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
        return found


@pytest.fixture(scope="session")
def warm_command() -> Iterator[WarmCommand]:
    command = WarmCommand()
    yield command
    command.close()


@pytest.fixture
def bench(tmp_path: Path, warm_command: WarmCommand) -> Iterator[Bench]:
    """A bench of one's own; the test fails if it leaves a process behind."""
    made = Bench(tmp_path, warm_command)
    yield made
    assert made.processes_left() == []
