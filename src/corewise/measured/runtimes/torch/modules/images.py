"""Load batches of images from a folder, decoded on demand.

Measured side: standard library, numpy, torch and Pillow only, Python 3.9.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from corewise.measured.runtimes.base import MissingPart, RankContext, WorkloadError
from corewise.measured.runtimes.torch.settings import Settings
from corewise.measured.workloads.models.layers import Shape
from corewise.process_control import end_with_parent

try:
    from PIL import Image
except ImportError as problem:
    raise MissingPart(f"decoding images needs Pillow: pip install Pillow ({problem})") from problem

SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"))
# Mean and standard deviation of ImageNet's color channels.
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
ORDER_SEED = 5
# Every tenth image is held out in training, if the folders give labels and there are enough images.
HELD_OUT_STRIDE, MIN_IMAGES_TO_HOLD_OUT = 10, 20
# Held-out images of all ranks together that are decoded to measure the accuracy.
MAX_HELD_OUT = 256


class FolderImages:
    """An endless stream of batches in a seeded order; every rank of a trial gets a different part."""

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
        labels = label_by_folder(files, num_classes, folder)
        self._folder, self._num_images, self._settings, self._batch = folder, len(files), settings, batch
        self._cached = read_into_page_cache(files)
        trained: Sequence[int] = range(len(files))
        held_out = range(0)
        if settings.training and len(set(labels)) > 1 and len(files) >= MIN_IMAGES_TO_HOLD_OUT:
            held_out = range(HELD_OUT_STRIDE - 1, len(files), HELD_OUT_STRIDE)
            trained = [index for index in trained if index not in held_out]
        self._decoded = DecodedImages(files, labels, shape[-1])
        # Every rank takes the same number, so that all of them gather equally many accuracies.
        num_own = min(len(held_out), MAX_HELD_OUT) // context.num_ranks
        self._held_out = held_out[context.rank :: context.num_ranks][:num_own]
        self._stream = _open_stream(
            self._decoded,
            EndlessOrder(trained, context.rank, context.num_ranks),
            batch,
            num_workers,
            settings.pinned_memory,
        )

    def next(self) -> Tuple[Tuple[Tensor], Optional[Tensor]]:
        """Return the next batch, waiting until it is decoded, and in training its labels."""
        try:
            images, labels = next(self._stream)
        except WorkloadError as problem:
            # A loader process wraps the message in its traceback.
            raise WorkloadError(str(problem).strip().splitlines()[-1].split("WorkloadError: ")[-1]) from None
        inputs = (self._settings.place(images),)
        if not self._settings.training:
            return inputs, None
        return inputs, labels.to(self._settings.device, non_blocking=self._settings.pinned_memory)

    def list_held_out(self) -> Sequence[Tuple[Tuple[Tensor], Tensor]]:
        """Decode the held-out images of this rank; empty if there are none."""
        batches: List[Tuple[Tuple[Tensor], Tensor]] = []
        for start in range(0, len(self._held_out), self._batch):
            samples = [self._decoded[index] for index in self._held_out[start : start + self._batch]]
            images = self._settings.place(torch.stack([image for image, _ in samples]))
            batches.append(((images,), torch.tensor([label for _, label in samples], device=self._settings.device)))
        return batches

    def collect_facts(self) -> Mapping[str, Any]:
        return {
            "data": self._folder,
            "num_images": self._num_images,
            "num_held_out_samples": len(self._held_out),
            "page_cache": "warm" if self._cached else "cold: the files exceed the free memory",
        }

    def close(self) -> None:
        """End the loader processes."""
        shut_down = getattr(self._stream, "_shutdown_workers", None)
        if shut_down is not None:
            shut_down()


class DecodedImages(Dataset[Tuple[Tensor, int]]):
    """Images cropped to their central square, scaled and normalized."""

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
                pixels = np.asarray(_cut_square(image.convert("RGB"), self._size), dtype=np.float32)
        except (OSError, ValueError, SyntaxError, EOFError) as problem:
            raise WorkloadError(f"{file} cannot be decoded as an image: {problem}") from problem
        normal = (pixels - self._mean) / self._deviation
        return torch.from_numpy(np.ascontiguousarray(normal.transpose(2, 0, 1))), self._labels[index]


class EndlessOrder(Sampler[int]):
    """Endless permutations of the images; each rank takes every num_ranks-th image of the same order."""

    def __init__(self, images: Sequence[int], rank: int, num_ranks: int) -> None:
        self._images, self._rank, self._num_ranks = images, rank, num_ranks

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(ORDER_SEED)
        place = 0
        while True:
            for index in torch.randperm(len(self._images), generator=generator).tolist():
                if place % self._num_ranks == self._rank:
                    yield self._images[index]
                place += 1


def find_images(folder: str) -> Tuple[Path, ...]:
    """Find the image files under a folder at any depth, sorted by name."""
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise WorkloadError(f"data: the folder {root} does not exist")
    files = tuple(sorted(f for f in root.rglob("*") if f.suffix.lower() in SUFFIXES and f.is_file()))
    if not files:
        raise WorkloadError(f"data: no images under {root} (supported: {', '.join(sorted(SUFFIXES))})")
    return files


def label_by_folder(files: Tuple[Path, ...], num_classes: int, folder: str) -> Tuple[int, ...]:
    """Label each file with the number of its folder among all folders with images."""
    numbers = {parent: number for number, parent in enumerate(sorted({f.parent for f in files}))}
    if len(numbers) > num_classes:
        raise WorkloadError(f"data: {folder} has {len(numbers)} folders of images but num_classes is {num_classes}")
    return tuple(numbers[f.parent] for f in files)


def read_into_page_cache(files: Tuple[Path, ...]) -> bool:
    """Read all files into the page cache if they fit, and return whether; raise if one is not an image."""
    fits = sum(f.stat().st_size for f in files) < _read_available_bytes() // 2
    for file in files if fits else files[:1]:
        try:
            with Image.open(io.BytesIO(file.read_bytes())) as image:
                image.verify()
        except (OSError, ValueError, SyntaxError) as problem:
            raise WorkloadError(f"{file} is not a readable image: {problem}") from problem
    return fits


def _open_stream(
    images: DecodedImages, order: EndlessOrder, batch: int, num_workers: int, pinned_memory: bool = False
) -> Iterator[Tuple[Tensor, Tensor]]:
    loader: DataLoader[Any] = DataLoader(
        images,
        batch_size=batch,
        sampler=order,
        num_workers=num_workers,
        pin_memory=pinned_memory,
        multiprocessing_context="fork" if num_workers else None,
        worker_init_fn=_start_worker if num_workers else None,
        persistent_workers=num_workers > 0,
    )
    return iter(loader)


def _start_worker(_: int) -> None:
    torch.set_num_threads(1)
    end_with_parent()


def _cut_square(image: Any, size: int) -> Any:
    """Crop the largest centered square and scale it to the given size."""
    width, height = image.size
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return image.resize((size, size), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))


def _read_available_bytes() -> int:
    with open("/proc/meminfo", encoding="ascii") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith("MemAvailable:"))
