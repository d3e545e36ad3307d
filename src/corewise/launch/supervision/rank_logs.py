"""The log files of ranks. Logs of an older launch are moved to a subfolder."""

import os
import re
from contextlib import suppress
from pathlib import Path


def build_log_path(folder: Path, rank: int) -> Path:
    """Build the path of a rank's log file."""
    return folder / f"rank-{rank}.log"


def move_old_logs(folder: Path) -> Path | None:
    """Move the logs of an older launch to a new subfolder and return it; None when there are none.

    All logs are moved, since those of a larger launch would look like ours. A launch that is still running
    continues to write to the moved files.
    """
    older = [name for name in os.listdir(folder) if re.fullmatch(r"rank-\d+\.log", name)]
    older = [name for name in older if not (folder / name).is_dir()]
    if not older:
        return None
    aside = _create_folder(folder)
    for name in older:
        # Another launch may have moved the file first.
        with suppress(FileNotFoundError):
            os.rename(folder / name, aside / name)
    return aside


def _create_folder(folder: Path) -> Path:
    number = 1
    while True:
        with suppress(FileExistsError):
            (folder / f"older-{number}").mkdir()
            return folder / f"older-{number}"
        number += 1
