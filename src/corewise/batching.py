"""Batches of images of many sizes with little padding: the public names of `corewise.accelerate.batching`.

Planning needs the standard library and numpy. The collate functions and the dataset import torch on first use.
Measured side: Python 3.9.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from corewise.accelerate.batching.collection_sizes import draw_collection_sizes, scale_short_side
from corewise.accelerate.batching.errors import BatchingError
from corewise.accelerate.batching.image_generator import generate_collection
from corewise.accelerate.batching.image_scan import ScannedFolder, read_image_sizes
from corewise.accelerate.batching.shape_batch_sampler import POLICIES, ShapeBatchSampler
from corewise.accelerate.batching.shape_stream import ShapeBatchStream

if TYPE_CHECKING:
    from corewise.accelerate.batching.collate import PackCollate, PackedBatch, PadCollate, PaddedBatch
    from corewise.accelerate.batching.image_dataset import ImageDataset

__all__ = [
    "POLICIES",
    "BatchingError",
    "ImageDataset",
    "PackCollate",
    "PackedBatch",
    "PadCollate",
    "PaddedBatch",
    "ScannedFolder",
    "ShapeBatchSampler",
    "ShapeBatchStream",
    "draw_collection_sizes",
    "generate_collection",
    "read_image_sizes",
    "scale_short_side",
]

# Names that need torch, and their modules.
_NEED_TORCH = {
    "PadCollate": "collate",
    "PackCollate": "collate",
    "PaddedBatch": "collate",
    "PackedBatch": "collate",
    "ImageDataset": "image_dataset",
}


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name not in _NEED_TORCH:
        raise AttributeError(f"module 'corewise.batching' has no attribute {name!r}")
    return getattr(import_module(f"corewise.accelerate.batching.{_NEED_TORCH[name]}"), name)
