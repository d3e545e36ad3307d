"""Described image classifiers as torch jobs.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import math
from typing import Any, Mapping, Optional

import torch
from torch import Tensor
from torch.nn import functional

from corewise.runtimes.base import Job, RankContext
from corewise.runtimes.params import rank_batch, workload_args
from corewise.runtimes.torch.checking import Case
from corewise.runtimes.torch.job import Batches, Task, job_for
from corewise.runtimes.torch.network import build_network
from corewise.runtimes.torch.parallel import RankGroup
from corewise.runtimes.torch.settings import Settings
from corewise.runtimes.torch.synthetic import SyntheticImages
from corewise.workloads.layers import Shape
from corewise.workloads.models.model import Model

WEIGHTS_SEED, DATA_SEED, CHECK_SEED = 1, 1000, 2
LEARNING_RATE = 0.001  # keeps AlexNet, which normalises nothing, from growing
CHECK_IMAGE_SIZE = 64  # the least that every model takes
MIN_POSITIONS = 8  # values of a channel in the last layers from which batch statistics are well-conditioned
DOWNSAMPLING = 32


def prepare_model(model: Model, params: Mapping[str, Any], context: RankContext, settings: Settings) -> Job:
    """The job of a described model."""
    args, batch = workload_args(params), rank_batch(params)
    shape, num_classes = model.input_shape(args), model.num_classes(args)
    task = Task(
        module=build_network(model.layers(args), WEIGHTS_SEED),
        batches=_batches(params, shape, batch, num_classes, settings, context),
        batch=batch,
        loss=functional.cross_entropy,
        learning_rate=LEARNING_RATE,
        case_for=lambda s, g: image_case(shape, batch, num_classes, s, g),
    )
    return job_for(task, settings, RankGroup(context, settings))


def image_case(shape: Shape, batch: int, num_classes: int, settings: Settings, group: RankGroup) -> Case:
    """Random images to check on: small for eager modules, of the trial's shape for those compiled for it."""
    if settings.execution == "eager":
        size = min(shape[-1], CHECK_IMAGE_SIZE)
        num_different = batch = max(2, math.ceil(MIN_POSITIONS / _positions(size)))
    else:
        size = shape[-1]
        num_different = _period(batch, max(2, math.ceil(MIN_POSITIONS / _positions(size))))
    generator = torch.Generator().manual_seed(CHECK_SEED)
    images = torch.randn(
        (num_different, shape[0], size, size), generator=generator, dtype=settings.tensor_dtype
    )
    images, inputs = settings.place(images), settings.place(images.repeat(batch // num_different, 1, 1, 1))
    if not settings.training:
        return Case((inputs,), (images,))
    labels = torch.randint(num_classes, (num_different,), generator=generator).to(settings.device)
    well_conditioned = num_different * _positions(size) >= MIN_POSITIONS

    def loss(outputs: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, labels.repeat(len(outputs) // num_different))

    return Case(
        (inputs,),
        (images,),
        loss,
        loss,
        loss_weight=group.loss_weight,
        quiet=("Dropout",) if well_conditioned else ("Dropout", "BatchNorm2d"),
    )


def _positions(image_size: int) -> float:
    return max(1.0, (image_size / DOWNSAMPLING) ** 2)


def _period(batch: int, at_least: int) -> int:
    """The least divisor of a batch that is large enough, or the batch."""
    return next((n for n in range(at_least, batch) if batch % n == 0), batch)


def _batches(
    params: Mapping[str, Any],
    shape: Shape,
    batch: int,
    num_classes: int,
    settings: Settings,
    context: RankContext,
) -> Batches:
    folder: Optional[str] = None if params["data"] == "synthetic" else str(params["data"])
    if folder is None:
        return SyntheticImages(shape, batch, num_classes, settings, DATA_SEED + context.rank)
    from corewise.runtimes.torch.images import FolderImages

    return FolderImages(
        folder, shape, batch, num_classes, settings, context, num_workers=int(params["loader_workers"])
    )
