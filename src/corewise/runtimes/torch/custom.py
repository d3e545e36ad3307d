"""A user's own torch module as a job.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import random
from typing import Any, Mapping, Tuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from corewise.runtimes.base import Job, RankContext, WorkloadError
from corewise.runtimes.params import rank_batch, require_defaults
from corewise.runtimes.steps import StepJob
from corewise.runtimes.torch.checking import Case, tensors
from corewise.runtimes.torch.job import Task, job_for
from corewise.runtimes.torch.parallel import RankGroup
from corewise.runtimes.torch.settings import Settings, process_facts
from corewise.workloads.base import workload_args
from corewise.workloads.custom import CustomModule, CustomStep, build_custom

LEARNING_RATE = (
    1e-4  # the same input again and again: small, so that it is not learnt by heart while measured
)
SEED = 1


def prepare_custom(params: Mapping[str, Any], context: RankContext, settings: Settings) -> Job:
    """The job of what the factory returns."""
    name, batch = str(params["workload"]), rank_batch(params)
    random.seed(SEED)  # sizes that a factory draws are the same in every process
    torch.manual_seed(
        SEED + context.rank
    )  # own inputs; ranks that train together begin with rank 0's weights
    made = build_custom(name, batch, str(params["mode"]), workload_args(params))
    if isinstance(made, CustomStep):
        require_defaults(
            params, ("dtype", "memory_format", "execution", "freezing", "data"), "a custom step decides it"
        )
        return StepJob(name, made, lambda: process_facts(settings), settings.finish)
    require_defaults(params, ("data",), "a custom module brings its own inputs")
    _refuse_nonsense(name, made, settings)
    return _module_job(made, batch, context, settings)


def _module_job(made: CustomModule, batch: int, context: RankContext, settings: Settings) -> Job:
    inputs, targets = tuple(map(settings.place, made.inputs)), settings.place(made.targets)

    def case_for(settings: Settings, group: RankGroup) -> Case:
        shared_inputs = tuple(settings.place(group.shared(x)) for x in inputs)
        shared_targets = group.shared(targets)
        loss = (lambda outputs: custom_loss(outputs, shared_targets)) if settings.training else None
        return Case(shared_inputs, shared_inputs, loss, loss, group.loss_weight, may_need_own_dtype=True)

    batches = FixedBatch(inputs, targets, shapes_of(made))
    task = Task(made.module, batches, batch, custom_loss, LEARNING_RATE, case_for)
    return job_for(task, settings, RankGroup(context, settings))


class FixedBatch:
    """The inputs a factory gave, at every step."""

    def __init__(self, inputs: Tuple[Any, ...], targets: Any, shapes: str = "") -> None:
        self._given = (inputs, targets)
        self._shapes = shapes

    def next(self) -> Tuple[Tuple[Any, ...], Any]:
        return self._given

    def facts(self) -> Mapping[str, Any]:
        return {"data": "given by the factory", "shapes": self._shapes}

    def close(self) -> None:
        return None


def shapes_of(made: CustomModule) -> str:
    """What must be alike in every start: the number of parameters, and the inputs but for their batch."""
    num_parameters = sum(p.numel() for p in made.module.parameters())
    sizes = ["×".join(map(str, x.shape[1:])) or "1" for x in made.inputs if isinstance(x, Tensor)]
    return f"{num_parameters:,} parameters, inputs of {' and '.join(sizes)}"


def custom_loss(outputs: Any, targets: Any) -> Tensor:
    """Cross entropy for whole-number targets, squared error for others, the outputs' mean square without."""
    made = tensors(outputs)
    if targets is None:
        return torch.stack([t.square().mean() for t in made]).sum()
    if targets.is_floating_point():
        return functional.mse_loss(made[0], targets.to(made[0].dtype))
    return functional.cross_entropy(made[0], targets)


def _refuse_nonsense(name: str, made: CustomModule, settings: Settings) -> None:
    if not isinstance(made.module, nn.Module):
        raise WorkloadError(f"{name} returned a {type(made.module).__name__} where a torch.nn.Module belongs")
    if not made.inputs or not any(isinstance(x, Tensor) for x in made.inputs):
        raise WorkloadError(f"{name} returned no tensor among the inputs; expected (module, (tensor, ...))")
    if made.targets is not None and not isinstance(made.targets, Tensor):
        raise WorkloadError(
            f"{name} returned a {type(made.targets).__name__} where a tensor of targets belongs"
        )
    if settings.training and not any(p.requires_grad for p in made.module.parameters()):
        raise WorkloadError(f"{name}: the module has no parameters to train; measure it with mode infer")
