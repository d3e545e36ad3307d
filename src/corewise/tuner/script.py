"""An untouched script: the command as it was typed, and the words that start it with other settings."""

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corewise.launcher.local import launch_command
from corewise.launcher.ranks import OUTSIDE_DEFAULTS


@dataclass(frozen=True)
class Script:
    """A command as the user typed it, and where."""

    words: tuple[str, ...]
    folder: Path
    pattern: re.Pattern[str] | None = None
    batch: int | None = None  # of all processes, for {batch_per_rank}
    check: re.Pattern[str] | None = None  # of a number that must be as the default's

    def filled(self, params: Mapping[str, Any]) -> list[str]:
        """The words with their placeholders filled in."""
        values = {"loader_workers": str(params.get("loader_workers", 0))}
        if self.batch is not None:
            values["batch_per_rank"] = str(self.batch // int(params["processes"]))
        return [re.sub(r"\{(\w+)\}", lambda m: values.get(m[1], m[0]), word) for word in self.words]

    def started_as(self, params: Mapping[str, Any], is_default: bool) -> list[str]:
        """The words that start it with these parameters; the default is the command and nothing else."""
        words = [self._found(word) for word in self.filled(params)]
        if is_default:
            return words
        outside = {name: params[name] for name in OUTSIDE_DEFAULTS if name in params}
        return [sys.executable, "-m", *launch_command(outside, words)]

    def _found(self, word: str) -> str:
        """The word, made absolute where it names a file here: each start has a folder of its own."""
        beside = self.folder / word
        return str(beside) if word and not word.startswith(("/", "-")) and beside.exists() else word


def placeholders(words: Sequence[str]) -> set[str]:
    """The names in braces that a command has."""
    return {name for word in words for name in re.findall(r"\{(\w+)\}", word)}
