"""Build torch jobs of layered models.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Mapping, Tuple

import torch
from torch import Tensor
from torch.nn import functional

from corewise.measured.parameters import MemoryFormat, TrialParameters
from corewise.measured.runtimes.base import Infeasible, Job, RankContext
from corewise.measured.runtimes.torch.modules.data_parallel import RankGroup
from corewise.measured.runtimes.torch.modules.labelled_data import LabelledBatches
from corewise.measured.runtimes.torch.modules.module_job import Batches, ModuleTask, build_job
from corewise.measured.runtimes.torch.modules.network import build_network
from corewise.measured.runtimes.torch.modules.numerical_check import CheckCase
from corewise.measured.runtimes.torch.modules.optimizers import choose_learning_rate
from corewise.measured.runtimes.torch.modules.synthetic_data import SyntheticBatches, draw_samples, place_batch
from corewise.measured.runtimes.torch.settings import Settings
from corewise.measured.runtimes.trial_params import compute_rank_batch, require_defaults
from corewise.measured.workloads.models.layered_model import LayeredModel
from corewise.measured.workloads.models.layers import Shape

WEIGHTS_SEED, DATA_SEED, CHECK_SEED = 1, 1000, 2
# Small enough that AlexNet, which has no normalization, does not diverge.
LEARNING_RATE = 0.001
# Weight of the auxiliary head's loss, as chosen by Inception's authors.
AUXILIARY_WEIGHT = 0.4
CHECK_STEPS = 32
# Samples without steps or pixels. With few of them, products may nearly cancel.
CHECK_VECTORS = 32
# Values of a channel in the last layers from which on batch statistics are well-conditioned.
MIN_POSITIONS = 8
DOWNSAMPLING = 32


def prepare_model(model: LayeredModel, params: TrialParameters, context: RankContext, settings: Settings) -> Job:
    """Prepare the job of a layered model."""
    _refuse_unsupported(model, params)
    args, batch = params.arguments, compute_rank_batch(params)
    samples = _describe_samples(model, args, settings)
    task = ModuleTask(
        module=build_network(
            model.build_layers(args),
            WEIGHTS_SEED,
            side_by_side=params.interop_threads is not None,
            training=settings.training,
        ),
        batches=_build_batches(samples, params, batch, settings, context),
        batch=batch,
        loss=compute_training_loss,
        learning_rate=choose_learning_rate(params, LEARNING_RATE),
        build_case=lambda s, g: build_check_case(samples, batch, s, g),
    )
    return build_job(task, settings, RankGroup(context, settings))


@dataclasses.dataclass(frozen=True)
class SampleFormat:
    """The format of a model's inputs: the shape of a sample, its values and the number of classes."""

    shape: Shape
    num_classes: int
    time_major: bool = False
    id_limits: Tuple[int, ...] = ()
    check_image_size: int = 0
    checks_statistics: bool = True

    def shrink(self) -> Shape:
        """Shrink the shape for a fast check: fewer pixels of an image, fewer steps of a sequence."""
        if len(self.shape) == 3:
            return (self.shape[0], *(min(size, self.check_image_size) for size in self.shape[1:]))
        return (min(self.shape[0], CHECK_STEPS), self.shape[1]) if len(self.shape) == 2 else self.shape


def compute_training_loss(outputs: Any, labels: Tensor) -> Tensor:
    """Compute the cross entropy (binary for one output), plus the weighted loss of an auxiliary head."""
    if isinstance(outputs, (tuple, list)):
        return compute_training_loss(outputs[0], labels) + AUXILIARY_WEIGHT * compute_training_loss(outputs[1], labels)
    if outputs.shape[-1] == 1:
        wanted = labels.to(outputs.dtype)
        return functional.binary_cross_entropy_with_logits(outputs.squeeze(-1), wanted)
    return functional.cross_entropy(outputs, labels)


def build_check_case(samples: SampleFormat, batch: int, settings: Settings, group: RankGroup) -> CheckCase:
    """Build random samples for the check: small for eager modules, otherwise of the trial's shape."""
    shape = samples.shape
    if settings.execution == "eager":
        shape = samples.shrink()
        num_different = batch = _find_min_samples(shape)
    else:
        num_different = _find_period(batch, _find_min_samples(shape))
    generator = torch.Generator().manual_seed(CHECK_SEED)
    different = draw_samples((num_different, *shape), generator, settings, samples.id_limits)
    repeated = different.repeat(batch // num_different, *[1] * len(shape))
    inputs, reference_inputs = (place_batch(x, settings, samples.time_major) for x in (repeated, different))
    if not settings.training:
        return CheckCase((inputs,), (reference_inputs,))
    labels = torch.randint(samples.num_classes, (num_different,), generator=generator).to(settings.device)
    well_conditioned = samples.checks_statistics and num_different * _estimate_positions(shape) >= MIN_POSITIONS

    def compute_loss(outputs: Any) -> Tensor:
        num_outputs = len(outputs[0] if isinstance(outputs, (tuple, list)) else outputs)
        return compute_training_loss(outputs, labels.repeat(num_outputs // num_different))

    return CheckCase(
        (inputs,),
        (reference_inputs,),
        compute_loss,
        compute_loss,
        loss_weight=group.loss_weight,
        eval_classes=("Dropout",) if well_conditioned else ("Dropout", "BatchNorm2d"),
    )


def _find_min_samples(shape: Shape) -> int:
    """Find how many different samples make batch statistics well-conditioned."""
    return CHECK_VECTORS if len(shape) == 1 else max(2, math.ceil(MIN_POSITIONS / _estimate_positions(shape)))


def _estimate_positions(shape: Shape) -> float:
    """Estimate the values per channel of an image in the last layers; sequences need no batch statistics."""
    return max(1.0, (shape[-1] / DOWNSAMPLING) ** 2) if len(shape) == 3 else float(MIN_POSITIONS)


def _find_period(batch: int, at_least: int) -> int:
    """Find the smallest divisor of the batch that is large enough, or the batch itself."""
    return next((n for n in range(at_least, batch) if batch % n == 0), batch)


def _describe_samples(model: LayeredModel, args: Mapping[str, Any], settings: Settings) -> SampleFormat:
    return SampleFormat(
        shape=model.compute_input_shape(args),
        num_classes=model.read_num_classes(args),
        time_major=model.time_major,
        id_limits=model.list_id_limits(args),
        check_image_size=model.check_image_size_train if settings.training else model.check_image_size,
        checks_statistics=model.checks_statistics,
    )


def _refuse_unsupported(model: LayeredModel, params: TrialParameters) -> None:
    if not model.takes_images:
        only_images = ("memory_format",) if params.data == "labelled" else ("memory_format", "data")
        require_defaults(params, only_images, f"{model.name} takes no images")
    if model.concurrent and params.memory_format == MemoryFormat.BLOCKED:
        raise Infeasible("memory_format blocked: torch cannot join branches in oneDNN's blocked layout")
    if model.concurrent and params.interop_threads is not None and params.execution != "script":
        raise Infeasible("interop_threads: branches run concurrently only with execution script")


def _build_batches(
    samples: SampleFormat, params: TrialParameters, batch: int, settings: Settings, context: RankContext
) -> Batches:
    shape, num_classes = samples.shape, samples.num_classes
    if params.data == "synthetic":
        seed = DATA_SEED + context.rank
        return SyntheticBatches(shape, batch, num_classes, settings, seed, samples.time_major, samples.id_limits)
    if params.data == "labelled":
        if samples.id_limits:
            raise Infeasible(f"data labelled: {params.workload} takes ids, which have no pattern to learn")
        return LabelledBatches(shape, batch, num_classes, settings, context, samples.time_major)
    from corewise.measured.runtimes.torch.modules.images import FolderImages

    folder, num_workers = params.data, params.loader_workers
    return FolderImages(folder, shape, batch, num_classes, settings, context, num_workers=num_workers)
