"""A folder that is whole or not there: made aside, then renamed; never over other people's files."""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from corewise.bundle.contents import BUNDLE_FILE, is_bundle
from corewise.bundle.payload.install import SUMS, changed_files
from corewise.spec.errors import UserError
from corewise.store.aside import cannot_write


def refuse_taken(folder: Path, force: bool) -> None:
    """A UserError unless the folder is free, empty, or an unchanged bundle, which may be replaced."""
    if not folder.exists() and not folder.is_symlink():
        return
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if not folder.is_dir() or not _is_ours(folder):
        raise UserError(f"{folder} exists and is not a bundle; name a new folder with -o")
    if force:
        return
    try:
        wrong = changed_files(folder)
    except OSError:
        wrong = [f"{SUMS} is missing"]
    if wrong:
        raise UserError(
            f"{folder} is a bundle with changes of yours ({wrong[0]}); "
            "name a new folder with -o, or replace it all with --force"
        )


@contextmanager
def made_aside(folder: Path) -> Iterator[Path]:
    """A new folder to fill, which takes the place of `folder` in the end or, when that fails, is gone."""
    final = folder.resolve()
    aside = final.with_name(f".{final.name}.{os.getpid()}.part")
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        _tell_of_leftovers(final)
        try:
            aside.mkdir()
            yield aside
            _take_place(aside, final)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    except OSError as problem:
        raise cannot_write(folder, problem) from problem


def _is_ours(folder: Path) -> bool:
    try:
        return is_bundle((folder / BUNDLE_FILE).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return False


def _take_place(aside: Path, final: Path) -> None:
    if not final.exists() or not any(final.iterdir()):
        os.rename(aside, final)  # an empty folder gives way in one step
        return
    old = final.with_name(f".{final.name}.{os.getpid()}.old")
    os.rename(final, old)
    try:
        os.rename(aside, final)
    except BaseException:
        os.rename(old, final)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _tell_of_leftovers(final: Path) -> None:
    for path in sorted(final.parent.glob(f".{final.name}.*.part")):
        print(f"corewise: left by an interrupted run, can be removed: {path}", file=sys.stderr)
