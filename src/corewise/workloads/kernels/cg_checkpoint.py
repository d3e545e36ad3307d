"""Checkpoints of conjugate gradients: written aside and renamed, refused when damaged or of another problem.

Measured side: standard library and numpy only, Python 3.9. The first line names the format, the bytes that
follow it and their SHA-256; then a line of JSON, then the vectors and r'r, float64, little-endian.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import shutil
from typing import Any, BinaryIO, List, Mapping

import numpy as np

from corewise.workloads.kernels.cg_iteration import State

FORMAT = b"corewise-cg-checkpoint-1"
LONGEST_FIRST_LINE = 200
VECTORS = ("x", "r", "p")


class BadCheckpoint(Exception):
    """A file that cannot be resumed from; its text says why."""


class NotWritten(OSError):
    """A checkpoint that could not be written; the one before it is as it was."""


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A state with what it belongs to and what its last bits depend on."""

    state: State
    problem: Mapping[str, Any]  # another one is refused
    conditions: Mapping[str, Any]  # others give the same numbers but for their last bits


def write_checkpoint(path: str, checkpoint: Checkpoint) -> int:
    """The bytes written. The file is there as a whole or not at all, even if the machine stops now."""
    state = checkpoint.state
    arrays = [
        np.ascontiguousarray(each, "<f8") for each in (*(getattr(state, v) for v in VECTORS), state.residuals)
    ]
    header = {
        "problem": checkpoint.problem,
        "conditions": checkpoint.conditions,
        "iteration": state.iteration,
        "lengths": [len(each) for each in arrays],
    }
    line = json.dumps(header, sort_keys=True).encode() + b"\n"
    digest, num_bytes = hashlib.sha256(line), len(line) + sum(each.nbytes for each in arrays)
    for each in arrays:
        digest.update(each.data)
    aside = f"{path}.part"  # one name: what a killed process left is overwritten
    try:
        with open(aside, "wb") as file:
            file.write(b"%s %d %s\n" % (FORMAT, num_bytes, digest.hexdigest().encode()))
            file.write(line)
            for each in arrays:
                file.write(each.data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException as problem:
        _remove(aside)
        if isinstance(problem, OSError):
            raise NotWritten(
                f"the checkpoint {path} of {num_bytes} bytes could not be written: {problem.strerror}; "
                "the one before it, if there was one, is as it was"
            ) from problem
        raise
    _sync_folder(os.path.dirname(os.path.abspath(path)))
    return num_bytes


def require_place(path: str, num_bytes: int) -> None:
    """Raises, before anything is solved: ValueError where no file can be, NotWritten where no room is."""
    aside, folder = f"{path}.part", os.path.dirname(os.path.abspath(path))
    try:
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with open(aside, "ab"):
            pass
    except OSError as problem:
        raise ValueError(f"no checkpoint can be written to {path}: {problem.strerror}") from problem
    _remove(aside)
    free_bytes = shutil.disk_usage(folder).free
    if num_bytes > free_bytes:  # the last checkpoint stays until the next is whole
        raise NotWritten(
            f"the checkpoint {path} of {num_bytes} bytes has no room: {folder} has {free_bytes} bytes free"
        )


def read_checkpoint(path: str, problem: Mapping[str, Any]) -> Checkpoint:
    """The checkpoint in a file; BadCheckpoint where it is damaged or of another problem."""
    with open(path, "rb") as file:
        content = _checked_content(path, file)
    line, _, numbers = content.partition(b"\n")
    header = json.loads(line)
    _refuse_other_problem(path, header["problem"], problem)
    arrays: List[Any] = []
    start = 0
    for length in header["lengths"]:
        arrays.append(np.frombuffer(numbers, "<f8", length, start).astype(np.float64))
        start += 8 * length
    x, r, p, residuals = arrays
    state = State(int(header["iteration"]), x, r, p, residuals)
    return Checkpoint(state, header["problem"], header["conditions"])


def _checked_content(path: str, file: BinaryIO) -> bytes:
    words = file.readline(LONGEST_FIRST_LINE).split()
    if len(words) != 3 or words[0] != FORMAT or not words[1].isdigit():
        raise BadCheckpoint(f"{path} is no checkpoint of conjugate gradients, or its first line is damaged")
    num_bytes, content = int(words[1]), file.read()
    if len(content) < num_bytes:
        raise BadCheckpoint(f"{path} is truncated: {len(content)} of {num_bytes} bytes are there")
    if len(content) > num_bytes or hashlib.sha256(content).hexdigest().encode() != words[2]:
        raise BadCheckpoint(f"{path} is damaged: its content does not have the checksum written with it")
    return content


def _refuse_other_problem(path: str, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    names = sorted(set(found) | set(wanted))
    other = [f"{n} {found.get(n)} and not {wanted.get(n)}" for n in names if found.get(n) != wanted.get(n)]
    if other:
        raise BadCheckpoint(f"{path} is of another problem: it has {'; '.join(other)}")


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return


def _sync_folder(folder: str) -> None:
    """Makes the renaming last; not every file system can."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        return
    finally:
        os.close(descriptor)
