"""The command of a script as it was typed, and the commands that start it with other settings."""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corewise.launch.ranks import OUTSIDE_DEFAULTS
from corewise.launch.worker_commands import build_launch_command
from corewise.progress import LOADER_WORKERS
from corewise.tuning.scripts.throughput_parser import RatePattern


@dataclass(frozen=True)
class Script:
    """A command as the user typed it.

    Attributes:
        folder: The folder in which it was typed.
        rate: Finds the throughput in its output, by an option of the user.
        batch: The batch of all processes, for {batch_per_rank}.
        check: Finds a number in its output that must match the default.
        default_is_launched: True if a fixed value makes even the default need the launcher.
        is_distributed: True if several processes are tried.
        workdir: The folder in which all starts run; None if each start has a private mirror of `folder`.
    """

    command: tuple[str, ...]
    folder: Path
    rate: RatePattern | None = None
    batch: int | None = None
    check: re.Pattern[str] | None = None
    default_is_launched: bool = False
    is_distributed: bool = False
    workdir: Path | None = None

    def fill_placeholders(self, params: Mapping[str, Any]) -> list[str]:
        """Return the command with its placeholders filled in."""
        values = {"loader_workers": str(params.get("loader_workers", 0))}
        if self.batch is not None:
            batch = int(params.get("batch", self.batch))
            values["batch_per_rank"] = str(batch // int(params["processes"]))
        return [re.sub(r"\{(\w+)\}", lambda m: values.get(m[1], m[0]), argument) for argument in self.command]

    def build_command(self, params: Mapping[str, Any], is_default: bool) -> list[str]:
        """Build the command that starts it with these parameters; the default runs as typed."""
        command = self._resolve_paths(self.fill_placeholders(params))
        if self.is_plain(is_default):
            return command
        outside = {name: params[name] for name in OUTSIDE_DEFAULTS if name in params}
        return [sys.executable, "-P", "-m", *build_launch_command(outside, command, self.build_environment(params))]

    def is_plain(self, is_default: bool) -> bool:
        """Return whether it starts as typed, without the launcher."""
        return is_default and not self.default_is_launched

    def explain_infeasible(self, params: Mapping[str, Any]) -> str:
        """Explain why these parameters are infeasible; return an empty text if they are feasible."""
        batch, processes = int(params.get("batch", 1)), int(params.get("processes", 1))
        if self.batch is None or batch % processes == 0:
            return ""
        return f"the batch of {batch} is not divisible by {processes} processes"

    def build_environment(self, params: Mapping[str, Any]) -> dict[str, str]:
        """Build the environment variables that pass these parameters to the script."""
        if "loader_workers" not in params or "loader_workers" in find_placeholders(self.command):
            return {}
        return {LOADER_WORKERS: str(params["loader_workers"])}

    def count_step_samples(self, params: Mapping[str, Any]) -> int:
        """Return the samples of a step of all processes; 1 if the batch is unknown, so that steps count."""
        return 1 if self.batch is None else int(params.get("batch", self.batch))

    def mentions(self, text: str) -> bool:
        """Return whether a Python file of the command contains a text."""
        files = [self.folder / argument for argument in self.command if argument.endswith(".py")]
        return any(text in each.read_text(errors="replace") for each in files if each.is_file())

    def find_missing_file(self) -> str:
        """Return the Python file of the command if it does not exist, else an empty text."""
        if not Path(self.command[0]).name.startswith("python"):
            return ""
        place = next((i for i, argument in enumerate(self.command) if i and not argument.startswith("-")), 0)
        file, before = self.command[place], self.command[1:place]
        is_file = place > 0 and file.endswith(".py") and not {"-m", "-c"} & set(before)
        return file if is_file and not (self.folder / file).exists() else ""

    def list_shared_folders(self) -> list[str]:
        """List the folders that the command names and that all starts share."""
        paths = [self._split_path(i, argument)[1] for i, argument in enumerate(self.command) if i]
        shared = [each for each in dict.fromkeys(paths) if each and (self.folder / each).is_dir()]
        return [each for each in shared if self._is_resolved(each) or each.startswith("/")]

    def _resolve_paths(self, command: Sequence[str]) -> list[str]:
        """Make paths of existing files absolute if they would not be found from the working folder."""
        resolved = []
        for place, argument in enumerate(command):
            option, path = self._split_path(place, argument, command)
            exists = path and self._is_resolved(path) and (self.folder / path).exists()
            resolved.append(f"{option}{self.folder / path}" if exists else argument)
        return resolved

    def _is_resolved(self, path: str) -> bool:
        """Return whether a relative path is made absolute: always elsewhere, for a mirror if it leads out of it."""
        if path.startswith("/") or self.workdir == self.folder:
            return False
        return self.workdir is not None or os.path.normpath(path).split("/")[0] == ".."

    def _split_path(self, place: int, argument: str, command: Sequence[str] = ()) -> tuple[str, str]:
        """Split an argument into its option and the part that may name a file, either may be empty."""
        # The shell looks up such a program in PATH.
        is_looked_up = place == 0 and "/" not in argument
        is_module = place > 0 and (command or self.command)[place - 1] == "-m"
        if is_looked_up or is_module:
            return argument, ""
        if argument.startswith("-"):
            option, equals, path = argument.partition("=")
            return option + equals, path
        return "", argument


def find_placeholders(command: Sequence[str]) -> set[str]:
    """Find the names in braces in a command."""
    return {name for argument in command for name in re.findall(r"\{(\w+)\}", argument)}
