"""Find the images of a folder and read their sizes from their headers, in parallel and cached.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Callable, Dict, Iterator, List, Optional, Sequence, Set, Tuple, Union

import numpy as np
from numpy.typing import NDArray

from corewise.accelerate.batching.errors import BatchingError
from corewise.accelerate.batching.image_headers import SUFFIXES, UNSUPPORTED_SUFFIXES, HeaderError, read_header
from corewise.accelerate.batching.size_cache import SizeCache

# Pillow refuses to decode images with more pixels: twice the pixels of 0.25 GiB of 24-bit colour.
MAX_IMAGE_PIXELS = 2 * (1024 * 1024 * 1024 // 4 // 3)
COLUMNS = ("width", "height", "channels", "bits", "orientation")
# Files per task of a thread: progress is reported this often.
_CHUNK = 256
# Reading headers waits for the disk, so more threads than cores help.
_MAX_THREADS = 16


@dataclass(frozen=True)
class ScanProblem:
    """A file that looks like an image and cannot be used."""

    path: str
    reason: str


@dataclass(frozen=True)
class ScannedFolder:
    """The images of a folder, sorted by path.

    Attributes:
        sizes: one row per image: height and width in pixels, as the loader sees them.
        channels: 1 for grey, 2 for grey with alpha, 3 for colours, 4 with alpha.
        bits: per channel.
        orientations: of EXIF, from 1 (upright) to 8.
        problems: files with the name of an image that are left out, each with the reason.
        num_other_files: files with other names.
        num_cached: images whose headers were not read again.
    """

    folder: str
    paths: Tuple[str, ...]
    sizes: NDArray[np.int64]
    channels: NDArray[np.int64]
    bits: NDArray[np.int64]
    orientations: NDArray[np.int64]
    problems: Tuple[ScanProblem, ...]
    num_other_files: int
    num_cached: int


@dataclass(frozen=True)
class _File:
    path: str
    num_bytes: int
    changed_ns: int


def read_image_sizes(
    folder: Union[str, os.PathLike[str]],
    *,
    apply_orientation: bool = True,
    max_image_pixels: int = MAX_IMAGE_PIXELS,
    use_cache: bool = True,
    report: Optional[Callable[[int, int], None]] = None,
) -> ScannedFolder:
    """Read the size of every image below a folder from its header; nothing is decoded.

    Links are followed; a folder that is reached twice is read once. Files that vanish during the scan are
    listed in `problems`.

    Args:
        folder: where the images are, at any depth.
        apply_orientation: exchange width and height where EXIF says so, as loaders do that turn images upright.
        max_image_pixels: larger images are left out and listed in `problems`.
        use_cache: take sizes of unchanged files from the user's cache.
        report: called with the number of files read so far and of all files.

    Raises:
        BatchingError: the folder does not exist or cannot be read.

    Example:
        >>> found = read_image_sizes("photos")
        >>> sampler = ShapeBatchSampler(found.sizes, policy="budget", max_pixels=20_000_000)
    """
    root = os.path.abspath(os.path.expanduser(os.fspath(folder)))
    problems: List[ScanProblem] = []
    files, num_others = _list_files(root, problems)
    cache = SizeCache(root if use_cache else "", COLUMNS) if use_cache else None
    names = [os.fsencode(os.path.relpath(file.path, root)) for file in files] if cache else []
    rows: Dict[int, Sequence[int]] = {}
    if cache is not None:
        for i, (file, name) in enumerate(zip(files, names)):
            cached = cache.find(name, file.num_bytes, file.changed_ns)
            if cached is not None:
                rows[i] = cached.tolist()
    num_cached = len(rows)
    for i, found in _read_headers(files, [i for i in range(len(files)) if i not in rows], report):
        if isinstance(found, str):
            problems.append(ScanProblem(files[i].path, found))
        else:
            rows[i] = found
    kept = sorted(rows)
    table = np.array([rows[i] for i in kept], dtype=np.int64).reshape(len(kept), len(COLUMNS))
    if cache is not None and len(rows) > num_cached:
        stamps = np.array([(files[i].num_bytes, files[i].changed_ns) for i in kept], dtype=np.int64).reshape(-1, 2)
        cache.store([names[i] for i in kept], np.concatenate([stamps, table], axis=1))
    return _build_result(root, [files[i].path for i in kept], table, problems, num_others, num_cached,
                         apply_orientation, max_image_pixels)  # fmt: skip


def _build_result(
    root: str,
    paths: List[str],
    table: NDArray[np.int64],
    problems: List[ScanProblem],
    num_others: int,
    num_cached: int,
    apply_orientation: bool,
    max_image_pixels: int,
) -> ScannedFolder:
    widths, heights, channels, bits, orientations = table.T
    too_large = widths * heights > max_image_pixels
    for i in np.flatnonzero(too_large).tolist():
        reason = (
            f"{widths[i]}×{heights[i]} pixels exceed the limit of {max_image_pixels:,} "
            "(max_image_pixels), above which decoders suspect an attack"
        )
        problems.append(ScanProblem(paths[i], reason))
    kept = ~too_large
    turned = (orientations >= 5) & apply_orientation
    sizes = np.stack([np.where(turned, widths, heights), np.where(turned, heights, widths)], axis=1)
    return ScannedFolder(
        root,
        tuple(path for path, keep in zip(paths, kept.tolist()) if keep),
        sizes[kept],
        channels[kept],
        bits[kept],
        orientations[kept],
        tuple(sorted(problems, key=lambda problem: problem.path)),
        num_others,
        num_cached,
    )


def _list_files(root: str, problems: List[ScanProblem]) -> Tuple[List[_File], int]:
    """List the files with names of images, sorted by path, and count the others."""
    if not os.path.isdir(root):
        state = "is not a folder" if os.path.exists(root) else "does not exist"
        raise BatchingError(f"{root} {state}: name a folder that holds images")
    found: List[_File] = []
    visited: Set[Tuple[int, int]] = set()
    num_others, waiting = 0, [root]
    while waiting:
        folder = waiting.pop()
        try:
            status = os.stat(folder)
            if (status.st_dev, status.st_ino) in visited:
                continue
            visited.add((status.st_dev, status.st_ino))
            entries = list(os.scandir(folder))
        except OSError as problem:
            if folder == root:
                raise BatchingError(f"{root} cannot be read: {problem.strerror}") from problem
            problems.append(ScanProblem(folder, f"the folder cannot be read: {problem.strerror}"))
            continue
        # In the order of names, a folder that is reached twice always gets the same path.
        for entry in sorted(entries, key=lambda entry: entry.name, reverse=True):
            suffix = os.path.splitext(entry.name)[1].lower()
            try:
                if entry.is_dir():
                    waiting.append(entry.path)
                elif suffix in SUFFIXES:
                    found += _examine_file(entry, problems)
                elif suffix in UNSUPPORTED_SUFFIXES:
                    problems.append(ScanProblem(entry.path, f"images of the format {suffix} are not supported"))
                else:
                    num_others += 1
            except OSError as problem:
                problems.append(ScanProblem(entry.path, problem.strerror or str(problem)))
    return sorted(found, key=lambda file: file.path), num_others


def _examine_file(entry: os.DirEntry[str], problems: List[ScanProblem]) -> List[_File]:
    if not entry.is_file():
        is_broken = entry.is_symlink() and not os.path.exists(entry.path)
        reason = "a link that points nowhere" if is_broken else "not a regular file"
        problems.append(ScanProblem(entry.path, reason))
        return []
    status = entry.stat()
    return [_File(entry.path, status.st_size, status.st_mtime_ns)]


def _read_headers(
    files: Sequence[_File], wanted: Sequence[int], report: Optional[Callable[[int, int], None]]
) -> Iterator[Tuple[int, Union[str, Tuple[int, ...]]]]:
    """Yield the number of each wanted file with its columns, or with the reason why it has none."""
    chunks = [wanted[k : k + _CHUNK] for k in range(0, len(wanted), _CHUNK)]
    num_threads = min(_MAX_THREADS, 2 * len(os.sched_getaffinity(0)), max(1, len(chunks)))
    num_done = len(files) - len(wanted)
    with ThreadPoolExecutor(num_threads) as pool:
        for chunk, found in zip(chunks, pool.map(lambda chunk: [_read_columns(files[i]) for i in chunk], chunks)):
            yield from zip(chunk, found)
            num_done += len(chunk)
            if report is not None:
                report(num_done, len(files))


def _read_columns(file: _File) -> Union[str, Tuple[int, ...]]:
    try:
        with open(file.path, "rb") as opened:
            header = read_header(opened, file.num_bytes)
    except HeaderError as problem:
        return str(problem)
    except FileNotFoundError:
        return "vanished during the scan"
    except OSError as problem:
        return f"cannot be read: {problem.strerror}"
    return header.width, header.height, header.channels, header.bits, header.orientation
