"""Described networks as torch jobs.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import math
from typing import Any, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from corewise.runtimes.base import Infeasible, Job, RankContext
from corewise.runtimes.params import rank_batch, require_defaults, workload_args
from corewise.runtimes.torch.checking import Case
from corewise.runtimes.torch.job import Batches, Task, job_for
from corewise.runtimes.torch.network import build_network
from corewise.runtimes.torch.parallel import RankGroup
from corewise.runtimes.torch.settings import Settings
from corewise.runtimes.torch.synthetic import SyntheticBatches, laid_out
from corewise.workloads.layers import Shape
from corewise.workloads.models.layered import LayeredModel

WEIGHTS_SEED, DATA_SEED, CHECK_SEED = 1, 1000, 2
LEARNING_RATE = 0.001  # keeps AlexNet, which normalises nothing, from growing
CHECK_IMAGE_SIZE = 64  # the least that every model takes
CHECK_STEPS = 32
MIN_POSITIONS = 8  # values of a channel in the last layers from which batch statistics are well-conditioned
DOWNSAMPLING = 32


def prepare_model(
    model: LayeredModel, params: Mapping[str, Any], context: RankContext, settings: Settings
) -> Job:
    """The job of a described model."""
    _refuse_nonsense(model, params)
    args, batch = workload_args(params), rank_batch(params)
    shape, num_classes = model.input_shape(args), model.num_classes(args)
    task = Task(
        module=build_network(
            model.layers(args), WEIGHTS_SEED, side_by_side=params["interop_threads"] is not None
        ),
        batches=_batches(model, params, batch, settings, context),
        batch=batch,
        loss=functional.cross_entropy,
        learning_rate=LEARNING_RATE,
        case_for=lambda s, g: check_case(shape, batch, num_classes, s, g, _time_major(model)),
    )
    return job_for(task, settings, RankGroup(context, settings))


def check_case(
    shape: Shape, batch: int, num_classes: int, settings: Settings, group: RankGroup, time_major: bool = False
) -> Case:
    """Random samples to check on: small for eager modules, of the trial's shape for those compiled for it."""
    if settings.execution == "eager":
        shape = _small(shape)
        num_different = batch = _at_least(shape)
    else:
        num_different = _period(batch, _at_least(shape))
    generator = torch.Generator().manual_seed(CHECK_SEED)
    samples = torch.randn((num_different, *shape), generator=generator, dtype=settings.tensor_dtype)
    repeated = samples.repeat(batch // num_different, *[1] * len(shape))
    inputs, reference_inputs = (laid_out(x, settings, time_major) for x in (repeated, samples))
    if not settings.training:
        return Case((inputs,), (reference_inputs,))
    labels = torch.randint(num_classes, (num_different,), generator=generator).to(settings.device)
    well_conditioned = num_different * _positions(shape) >= MIN_POSITIONS

    def loss(outputs: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, labels.repeat(len(outputs) // num_different))

    return Case(
        (inputs,),
        (reference_inputs,),
        loss,
        loss,
        loss_weight=group.loss_weight,
        quiet=("Dropout",) if well_conditioned else ("Dropout", "BatchNorm2d"),
    )


def _small(shape: Shape) -> Shape:
    """A shape that is quickly checked: fewer pixels of an image, fewer steps of a sequence."""
    if len(shape) == 3:
        return (shape[0], *(min(size, CHECK_IMAGE_SIZE) for size in shape[1:]))
    return (min(shape[0], CHECK_STEPS), shape[1])


def _at_least(shape: Shape) -> int:
    """Different samples from which on batch statistics are well-conditioned."""
    return max(2, math.ceil(MIN_POSITIONS / _positions(shape)))


def _positions(shape: Shape) -> float:
    """Values of a channel that an image leaves in the last layers; sequences have no batch statistics."""
    return max(1.0, (shape[-1] / DOWNSAMPLING) ** 2) if len(shape) == 3 else float(MIN_POSITIONS)


def _period(batch: int, at_least: int) -> int:
    """The least divisor of a batch that is large enough, or the batch."""
    return next((n for n in range(at_least, batch) if batch % n == 0), batch)


def _time_major(model: LayeredModel) -> bool:
    return bool(getattr(model, "time_major", False))


def _refuse_nonsense(model: LayeredModel, params: Mapping[str, Any]) -> None:
    if not model.takes_images:
        require_defaults(params, ("memory_format", "data"), f"{model.name} takes sequences, not images")
    if model.concurrent and params["interop_threads"] is not None and params["execution"] != "script":
        raise Infeasible("interop_threads: branches run side by side under execution script only")


def _batches(
    model: LayeredModel, params: Mapping[str, Any], batch: int, settings: Settings, context: RankContext
) -> Batches:
    args = workload_args(params)
    shape, num_classes = model.input_shape(args), model.num_classes(args)
    if params["data"] == "synthetic":
        seed = DATA_SEED + context.rank
        return SyntheticBatches(shape, batch, num_classes, settings, seed, _time_major(model))
    from corewise.runtimes.torch.images import FolderImages

    folder, num_workers = str(params["data"]), int(params["loader_workers"])
    return FolderImages(folder, shape, batch, num_classes, settings, context, num_workers=num_workers)
