"""Writes a folder completely or not at all: under a temporary name, then renamed. Protects other files."""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from corewise.bundle.contents import BUNDLE_FILE, is_bundle
from corewise.bundle.payload.install import SUMS, find_changed_files
from corewise.errors import UserError
from corewise.store.atomic_files import explain_write_error


def refuse_occupied_folder(folder: Path, force: bool) -> None:
    """Raise UserError unless the folder is missing, empty, or an unchanged bundle, which may be replaced."""
    if not folder.exists() and not folder.is_symlink():
        return
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if not folder.is_dir() or not _is_own_bundle(folder):
        raise UserError(f"{folder} exists and is not a bundle; name a new folder with -o")
    if force:
        return
    try:
        changes = find_changed_files(folder)
    except OSError:
        changes = [f"{SUMS} is missing"]
    if changes:
        raise UserError(
            f"{folder} is a bundle that was changed ({changes[0]}); "
            "name a new folder with -o, or replace it with --force"
        )


@contextmanager
def write_folder_atomically(folder: Path) -> Iterator[Path]:
    """Yield a new folder that replaces `folder` at the end; it is removed on failure."""
    final = folder.resolve()
    aside = final.with_name(f".{final.name}.{os.getpid()}.part")
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        _report_leftovers(final)
        try:
            aside.mkdir()
            yield aside
            _replace_folder(aside, final)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    except OSError as problem:
        raise explain_write_error(folder, problem) from problem


def _is_own_bundle(folder: Path) -> bool:
    try:
        return is_bundle((folder / BUNDLE_FILE).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return False


def _replace_folder(aside: Path, final: Path) -> None:
    if not final.exists() or not any(final.iterdir()):
        # rename replaces an empty folder in one step.
        os.rename(aside, final)
        return
    old = final.with_name(f".{final.name}.{os.getpid()}.old")
    os.rename(final, old)
    try:
        os.rename(aside, final)
    except BaseException:
        os.rename(old, final)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _report_leftovers(final: Path) -> None:
    for path in sorted(final.parent.glob(f".{final.name}.*.part")):
        print(f"corewise: an interrupted run left {path}; it can be removed", file=sys.stderr)
