"""Where the output of ranks is kept, and what becomes of an older launch's."""

import os
import re
from contextlib import suppress
from pathlib import Path


def log_file(folder: Path, rank: int) -> Path:
    """Where a rank's output is kept."""
    return folder / f"rank-{rank}.log"


def set_aside_older(folder: Path) -> Path | None:
    """The folder that logs of an older launch were moved to, None where there were none.

    All are moved: those of more ranks would look like ours. A launch that still writes goes on there.
    """
    older = [name for name in os.listdir(folder) if re.fullmatch(r"rank-\d+\.log", name)]
    older = [name for name in older if not (folder / name).is_dir()]
    if not older:
        return None
    aside = _new_folder(folder)
    for name in older:
        with suppress(FileNotFoundError):  # another launch was quicker
            os.rename(folder / name, aside / name)
    return aside


def _new_folder(folder: Path) -> Path:
    number = 1
    while True:
        with suppress(FileExistsError):
            (folder / f"older-{number}").mkdir()
            return folder / f"older-{number}"
        number += 1
