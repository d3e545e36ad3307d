"""Checkpoints of conjugate gradients.

A checkpoint is written to a temporary name and renamed. A damaged file, or one of another problem, is
rejected. The first line holds the format, the number of bytes that follow and their SHA-256. Then follow a
line of JSON, the vectors and r'r as little-endian float64.

Measured side: standard library and numpy only, Python 3.9.
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

from corewise.measured.workloads.kernels.cg.iteration import SolverState

FORMAT = b"corewise-cg-checkpoint-1"
MAX_FIRST_LINE_BYTES = 200
VECTORS = ("x", "r", "p")


class BadCheckpoint(Exception):
    """A file that cannot be resumed from; the message says why."""


class CheckpointNotWritten(OSError):
    """A checkpoint that could not be written; the previous one is unchanged."""


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A solver state with its problem and the conditions under which it was computed.

    Only the same `problem` can be resumed. Under other `conditions` the results differ in their last bits.
    """

    state: SolverState
    problem: Mapping[str, Any]
    conditions: Mapping[str, Any]


def write_checkpoint(path: str, checkpoint: Checkpoint) -> int:
    """Write a checkpoint atomically, even if the machine stops, and return its size in bytes."""
    state = checkpoint.state
    arrays = [np.ascontiguousarray(each, "<f8") for each in (*(getattr(state, v) for v in VECTORS), state.residuals)]
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
    # The temporary name is fixed, so that the leftover of a killed process is overwritten.
    aside = f"{path}.part"
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
            raise CheckpointNotWritten(
                f"the checkpoint {path} of {num_bytes} bytes could not be written: {problem.strerror}; "
                "the previous checkpoint, if any, is unchanged"
            ) from problem
        raise
    _sync_folder(os.path.dirname(os.path.abspath(path)))
    return num_bytes


def require_checkpoint_space(path: str, num_bytes: int) -> None:
    """Raise ValueError if `path` is not writable, CheckpointNotWritten if the disk has too little space."""
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
    # The previous checkpoint stays until the next one is complete.
    if num_bytes > free_bytes:
        raise CheckpointNotWritten(
            f"no space for the checkpoint {path} of {num_bytes} bytes: {folder} has {free_bytes} bytes free"
        )


def read_checkpoint(path: str, problem: Mapping[str, Any]) -> Checkpoint:
    """Read a checkpoint; raise BadCheckpoint if it is damaged or belongs to another problem."""
    with open(path, "rb") as file:
        content = _read_checked_content(path, file)
    line, _, numbers = content.partition(b"\n")
    header = json.loads(line)
    _refuse_other_problem(path, header["problem"], problem)
    arrays: List[Any] = []
    start = 0
    for length in header["lengths"]:
        arrays.append(np.frombuffer(numbers, "<f8", length, start).astype(np.float64))
        start += 8 * length
    x, r, p, residuals = arrays
    state = SolverState(int(header["iteration"]), x, r, p, residuals)
    return Checkpoint(state, header["problem"], header["conditions"])


def _read_checked_content(path: str, file: BinaryIO) -> bytes:
    """Return the content after the first line; raise BadCheckpoint if the checksum does not match."""
    fields = file.readline(MAX_FIRST_LINE_BYTES).split()
    if len(fields) != 3 or fields[0] != FORMAT or not fields[1].isdigit():
        raise BadCheckpoint(f"{path} is not a checkpoint of conjugate gradients, or its first line is damaged")
    num_bytes, content = int(fields[1]), file.read()
    if len(content) < num_bytes:
        raise BadCheckpoint(f"{path} is truncated: it has {len(content)} of {num_bytes} bytes")
    if len(content) > num_bytes or hashlib.sha256(content).hexdigest().encode() != fields[2]:
        raise BadCheckpoint(f"{path} is damaged: its content does not match its checksum")
    return content


def _refuse_other_problem(path: str, actual: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    names = sorted(set(actual) | set(expected))
    differences = [
        f"{n} {actual.get(n)} instead of {expected.get(n)}" for n in names if actual.get(n) != expected.get(n)
    ]
    if differences:
        raise BadCheckpoint(f"{path} belongs to another problem: it has {'; '.join(differences)}")


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return


def _sync_folder(folder: str) -> None:
    """Make the rename durable; some file systems do not support this."""
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
