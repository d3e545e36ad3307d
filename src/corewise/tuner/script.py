"""An untouched script: the command as it was typed, and the words that start it with other settings."""

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corewise.launcher.local import launch_command
from corewise.launcher.ranks import OUTSIDE_DEFAULTS
from corewise.progress import LOADER_WORKERS


@dataclass(frozen=True)
class Script:
    """A command as the user typed it, and where."""

    words: tuple[str, ...]
    folder: Path
    pattern: re.Pattern[str] | None = None
    batch: int | None = None  # of all processes, for {batch_per_rank}
    check: re.Pattern[str] | None = None  # of a number that must be as the default's
    default_is_launched: bool = False  # something was fixed that plain `python` does not do

    def filled(self, params: Mapping[str, Any]) -> list[str]:
        """The words with their placeholders filled in."""
        values = {"loader_workers": str(params.get("loader_workers", 0))}
        if self.batch is not None:
            batch = int(params.get("batch", self.batch))
            values["batch_per_rank"] = str(batch // int(params["processes"]))
        return [re.sub(r"\{(\w+)\}", lambda m: values.get(m[1], m[0]), word) for word in self.words]

    def started_as(self, params: Mapping[str, Any], is_default: bool) -> list[str]:
        """The words that start it with these parameters; the default is the command and what was fixed."""
        words = self._placed(self.filled(params))
        if self.is_plain(is_default):
            return words
        outside = {name: params[name] for name in OUTSIDE_DEFAULTS if name in params}
        return [sys.executable, "-m", *launch_command(outside, words, self.variables(params))]

    def is_plain(self, is_default: bool) -> bool:
        """Whether it starts as it was typed, without a launcher."""
        return is_default and not self.default_is_launched

    def reason_against(self, params: Mapping[str, Any]) -> str:
        """Why no command can be made with these parameters; empty where one can."""
        batch, processes = int(params.get("batch", 1)), int(params.get("processes", 1))
        if self.batch is None or batch % processes == 0:
            return ""
        return f"a batch of {batch} is no multiple of {processes} processes"

    def variables(self, params: Mapping[str, Any]) -> dict[str, str]:
        """What a start finds in its environment by these parameters; nothing where none was chosen."""
        if "loader_workers" not in params or "loader_workers" in placeholders(self.words):
            return {}
        return {LOADER_WORKERS: str(params["loader_workers"])}

    def missing_file(self) -> str:
        """The file that Python is to run, where it is not there: starts look in folders of their own."""
        if not Path(self.words[0]).name.startswith("python"):
            return ""
        place = next((i for i, word in enumerate(self.words) if i and not word.startswith("-")), 0)
        file, before = self.words[place], self.words[1:place]
        is_file = place > 0 and file.endswith(".py") and not {"-m", "-c"} & set(before)
        return file if is_file and not (self.folder / file).exists() else ""

    def shared_folders(self) -> list[str]:
        """The folders here that the command names: all starts share them."""
        named = [self._named(i, word)[1] for i, word in enumerate(self.words) if i]
        return [each for each in dict.fromkeys(named) if each and (self.folder / each).is_dir()]

    def _placed(self, words: Sequence[str]) -> list[str]:
        """The words, absolute where they name a file here: each start has a folder of its own."""
        placed = []
        for place, word in enumerate(words):
            option, path = self._named(place, word, words)
            exists = path and not path.startswith("/") and (self.folder / path).exists()
            placed.append(f"{option}{self.folder / path}" if exists else word)
        return placed

    def _named(self, place: int, word: str, words: Sequence[str] = ()) -> tuple[str, str]:
        """What of a word may name a file, after the option that takes it; empty where nothing may."""
        is_looked_up = place == 0 and "/" not in word  # in PATH
        is_module = place > 0 and (words or self.words)[place - 1] == "-m"
        if is_looked_up or is_module:
            return word, ""
        if word.startswith("-"):
            option, equals, path = word.partition("=")
            return option + equals, path
        return "", word


def placeholders(words: Sequence[str]) -> set[str]:
    """The names in braces that a command has."""
    return {name for word in words for name in re.findall(r"\{(\w+)\}", word)}
