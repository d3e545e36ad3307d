"""Batches of images from a folder, decoded as they are needed.

Measured side: standard library, numpy, torch and Pillow only, Python 3.9.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, Iterator, Mapping, Optional, Tuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from corewise.machine.pinning import die_with_parent
from corewise.runtimes.base import MissingPart, RankContext, WorkloadError
from corewise.runtimes.torch.settings import Settings
from corewise.workloads.layers import Shape

try:
    from PIL import Image
except ImportError as problem:
    raise MissingPart(f"images are decoded by Pillow: pip install Pillow ({problem})") from problem

SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"))
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's colours
ORDER_SEED = 5


class FolderImages:
    """An endless stream of batches in a seeded order; ranks of one trial see different parts of it."""

    def __init__(
        self,
        folder: str,
        shape: Shape,
        batch: int,
        num_classes: int,
        settings: Settings,
        context: RankContext,
        num_workers: int,
    ) -> None:
        files = find_images(folder)
        labels = folder_labels(files, num_classes, folder)
        self._folder, self._num_images, self._settings = folder, len(files), settings
        self._cached = read_into_page_cache(files)
        self._stream = _stream(
            DecodedImages(files, labels, shape[-1]),
            EndlessOrder(len(files), context.rank, context.num_ranks),
            batch,
            num_workers,
            settings.pinned_memory,
        )

    def next(self) -> Tuple[Tuple[Tensor], Optional[Tensor]]:
        """The next batch, waited for if it is not yet decoded, and in training its labels."""
        try:
            images, labels = next(self._stream)
        except WorkloadError as problem:  # a loader process wraps it in its whole traceback
            raise WorkloadError(str(problem).strip().splitlines()[-1].split("WorkloadError: ")[-1]) from None
        inputs = (self._settings.place(images),)
        if not self._settings.training:
            return inputs, None
        return inputs, labels.to(self._settings.device, non_blocking=self._settings.pinned_memory)

    def facts(self) -> Mapping[str, Any]:
        return {
            "data": self._folder,
            "num_images": self._num_images,
            "page_cache": "warm" if self._cached else "cold: the files exceed the memory that is free",
        }

    def close(self) -> None:
        """End the loader processes."""
        shut_down = getattr(self._stream, "_shutdown_workers", None)
        if shut_down is not None:
            shut_down()


class DecodedImages(Dataset[Tuple[Tensor, int]]):
    """Images scaled so that their short side fits, cut to the centre, and normalised."""

    def __init__(self, files: Tuple[Path, ...], labels: Tuple[int, ...], size: int) -> None:
        self._files, self._labels, self._size = files, labels, size
        self._mean = np.asarray(MEAN, dtype=np.float32) * 255
        self._deviation = np.asarray(DEVIATION, dtype=np.float32) * 255

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> Tuple[Tensor, int]:
        file = self._files[index]
        try:
            with Image.open(file) as image:
                pixels = np.asarray(_cut(image.convert("RGB"), self._size), dtype=np.float32)
        except (OSError, ValueError, SyntaxError, EOFError) as problem:
            raise WorkloadError(f"{file} cannot be decoded as an image: {problem}") from problem
        normal = (pixels - self._mean) / self._deviation
        return torch.from_numpy(np.ascontiguousarray(normal.transpose(2, 0, 1))), self._labels[index]


class EndlessOrder(Sampler[int]):
    """Permutations of all images one after another; each rank takes every num_ranks-th of the same order."""

    def __init__(self, num_images: int, rank: int, num_ranks: int) -> None:
        self._num_images, self._rank, self._num_ranks = num_images, rank, num_ranks

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(ORDER_SEED)
        place = 0
        while True:
            for index in torch.randperm(self._num_images, generator=generator).tolist():
                if place % self._num_ranks == self._rank:
                    yield index
                place += 1


def find_images(folder: str) -> Tuple[Path, ...]:
    """The image files under a folder at any depth, in the order of their names."""
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise WorkloadError(f"data: there is no folder {root}")
    files = tuple(sorted(f for f in root.rglob("*") if f.suffix.lower() in SUFFIXES and f.is_file()))
    if not files:
        raise WorkloadError(f"data: no images under {root} (looked for {', '.join(sorted(SUFFIXES))})")
    return files


def folder_labels(files: Tuple[Path, ...], num_classes: int, folder: str) -> Tuple[int, ...]:
    """For each file the number of its folder among all folders that hold images."""
    numbers = {parent: number for number, parent in enumerate(sorted({f.parent for f in files}))}
    if len(numbers) > num_classes:
        raise WorkloadError(
            f"data: {folder} has {len(numbers)} folders of images but num_classes is {num_classes}"
        )
    return tuple(numbers[f.parent] for f in files)


def read_into_page_cache(files: Tuple[Path, ...]) -> bool:
    """True when all files were read, so that steps find them in memory; refuses what is not an image."""
    fits = sum(f.stat().st_size for f in files) < _available_bytes() // 2
    for file in files if fits else files[:1]:
        try:
            with Image.open(io.BytesIO(file.read_bytes())) as image:
                image.verify()
        except (OSError, ValueError, SyntaxError) as problem:
            raise WorkloadError(f"{file} is not an image that can be read: {problem}") from problem
    return fits


def _stream(
    images: DecodedImages, order: EndlessOrder, batch: int, num_workers: int, pinned_memory: bool = False
) -> Iterator[Tuple[Tensor, Tensor]]:
    loader: DataLoader[Any] = DataLoader(
        images,
        batch_size=batch,
        sampler=order,
        num_workers=num_workers,
        pin_memory=pinned_memory,
        multiprocessing_context="fork" if num_workers else None,
        worker_init_fn=_begin_worker if num_workers else None,
        persistent_workers=num_workers > 0,
    )
    return iter(loader)


def _begin_worker(_: int) -> None:
    torch.set_num_threads(1)
    die_with_parent()


def _cut(image: Any, size: int) -> Any:
    """The largest centred square, scaled to the size asked for."""
    width, height = image.size
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return image.resize((size, size), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))


def _available_bytes() -> int:
    with open("/proc/meminfo", encoding="ascii") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith("MemAvailable:"))
