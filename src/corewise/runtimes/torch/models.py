"""Described networks as torch jobs.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Mapping, Tuple

import torch
from torch import Tensor
from torch.nn import functional

from corewise.runtimes.base import Infeasible, Job, RankContext
from corewise.runtimes.params import rank_batch, require_defaults
from corewise.runtimes.torch.checking import Case
from corewise.runtimes.torch.job import Batches, Task, job_for
from corewise.runtimes.torch.network import build_network
from corewise.runtimes.torch.parallel import RankGroup
from corewise.runtimes.torch.settings import Settings
from corewise.runtimes.torch.synthetic import SyntheticBatches, drawn, laid_out
from corewise.workloads.base import workload_args
from corewise.workloads.layers import Shape
from corewise.workloads.models.layered import LayeredModel

WEIGHTS_SEED, DATA_SEED, CHECK_SEED = 1, 1000, 2
LEARNING_RATE = 0.001  # keeps AlexNet, which normalises nothing, from growing
AUXILIARY_WEIGHT = 0.4  # of the loss of a head that only training has, as Inception's authors
CHECK_STEPS = 32
CHECK_VECTORS = 32  # samples without steps or pixels; their products may nearly cancel in a few of them
MIN_POSITIONS = 8  # values of a channel in the last layers from which batch statistics are well-conditioned
DOWNSAMPLING = 32


def prepare_model(
    model: LayeredModel, params: Mapping[str, Any], context: RankContext, settings: Settings
) -> Job:
    """The job of a described model."""
    _refuse_nonsense(model, params)
    args, batch = workload_args(params), rank_batch(params)
    samples = _samples(model, args, settings)
    task = Task(
        module=build_network(
            model.layers(args),
            WEIGHTS_SEED,
            side_by_side=params["interop_threads"] is not None,
            training=settings.training,
        ),
        batches=_batches(samples, params, batch, settings, context),
        batch=batch,
        loss=training_loss,
        learning_rate=LEARNING_RATE,
        case_for=lambda s, g: check_case(samples, batch, s, g),
    )
    return job_for(task, settings, RankGroup(context, settings))


@dataclasses.dataclass(frozen=True)
class Samples:
    """What a model takes: the shape of one sample, what it is made of, and how many classes there are."""

    shape: Shape
    num_classes: int
    time_major: bool = False
    id_limits: Tuple[int, ...] = ()
    check_image_size: int = 0
    checks_statistics: bool = True

    def small(self) -> Shape:
        """A shape that is quickly checked: fewer pixels of an image, fewer steps of a sequence."""
        if len(self.shape) == 3:
            return (self.shape[0], *(min(size, self.check_image_size) for size in self.shape[1:]))
        return (min(self.shape[0], CHECK_STEPS), self.shape[1]) if len(self.shape) == 2 else self.shape


def training_loss(outputs: Any, labels: Tensor) -> Tensor:
    """Cross entropy; of one output alone that of a yes or no, of a second head added with its weight."""
    if isinstance(outputs, (tuple, list)):
        return training_loss(outputs[0], labels) + AUXILIARY_WEIGHT * training_loss(outputs[1], labels)
    if outputs.shape[-1] == 1:
        wanted = labels.to(outputs.dtype)
        return functional.binary_cross_entropy_with_logits(outputs.squeeze(-1), wanted)
    return functional.cross_entropy(outputs, labels)


def check_case(samples: Samples, batch: int, settings: Settings, group: RankGroup) -> Case:
    """Random samples to check on: small for eager modules, of the trial's shape for those made for it."""
    shape = samples.shape
    if settings.execution == "eager":
        shape = samples.small()
        num_different = batch = _at_least(shape)
    else:
        num_different = _period(batch, _at_least(shape))
    generator = torch.Generator().manual_seed(CHECK_SEED)
    different = drawn((num_different, *shape), generator, settings, samples.id_limits)
    repeated = different.repeat(batch // num_different, *[1] * len(shape))
    inputs, reference_inputs = (laid_out(x, settings, samples.time_major) for x in (repeated, different))
    if not settings.training:
        return Case((inputs,), (reference_inputs,))
    labels = torch.randint(samples.num_classes, (num_different,), generator=generator).to(settings.device)
    well_conditioned = samples.checks_statistics and num_different * _positions(shape) >= MIN_POSITIONS

    def loss(outputs: Any) -> Tensor:
        num_outputs = len(outputs[0] if isinstance(outputs, (tuple, list)) else outputs)
        return training_loss(outputs, labels.repeat(num_outputs // num_different))

    return Case(
        (inputs,),
        (reference_inputs,),
        loss,
        loss,
        loss_weight=group.loss_weight,
        quiet=("Dropout",) if well_conditioned else ("Dropout", "BatchNorm2d"),
    )


def _at_least(shape: Shape) -> int:
    """Different samples from which on batch statistics are well-conditioned."""
    return CHECK_VECTORS if len(shape) == 1 else max(2, math.ceil(MIN_POSITIONS / _positions(shape)))


def _positions(shape: Shape) -> float:
    """Values of a channel that an image leaves in the last layers; sequences have no batch statistics."""
    return max(1.0, (shape[-1] / DOWNSAMPLING) ** 2) if len(shape) == 3 else float(MIN_POSITIONS)


def _period(batch: int, at_least: int) -> int:
    """The least divisor of a batch that is large enough, or the batch."""
    return next((n for n in range(at_least, batch) if batch % n == 0), batch)


def _samples(model: LayeredModel, args: Mapping[str, Any], settings: Settings) -> Samples:
    checked = "check_image_size_train" if settings.training else "check_image_size"
    return Samples(
        shape=model.input_shape(args),
        num_classes=model.num_classes(args),
        time_major=bool(getattr(model, "time_major", False)),
        id_limits=model.id_limits(args),
        check_image_size=int(getattr(model, checked, 0)),
        checks_statistics=bool(getattr(model, "checks_statistics", True)),
    )


def _refuse_nonsense(model: LayeredModel, params: Mapping[str, Any]) -> None:
    if not model.takes_images:
        require_defaults(params, ("memory_format", "data"), f"{model.name} takes no images")
    if model.concurrent and params["memory_format"] == "blocked":
        raise Infeasible("memory_format blocked: torch cannot join branches in oneDNN's blocked layout")
    if model.concurrent and params["interop_threads"] is not None and params["execution"] != "script":
        raise Infeasible("interop_threads: branches run side by side under execution script only")


def _batches(
    samples: Samples, params: Mapping[str, Any], batch: int, settings: Settings, context: RankContext
) -> Batches:
    shape, num_classes = samples.shape, samples.num_classes
    if params["data"] == "synthetic":
        seed = DATA_SEED + context.rank
        return SyntheticBatches(
            shape, batch, num_classes, settings, seed, samples.time_major, samples.id_limits
        )
    from corewise.runtimes.torch.images import FolderImages

    folder, num_workers = str(params["data"]), int(params["loader_workers"])
    return FolderImages(folder, shape, batch, num_classes, settings, context, num_workers=num_workers)
