"""Build the job of a user's torch module.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import random
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.base import Job, RankContext, WorkloadError
from corewise.measured.runtimes.torch.modules.data_parallel import RankGroup
from corewise.measured.runtimes.torch.modules.module_job import ModuleTask, build_job
from corewise.measured.runtimes.torch.modules.numerical_check import CheckCase, list_float_tensors
from corewise.measured.runtimes.torch.modules.optimizers import choose_learning_rate
from corewise.measured.runtimes.torch.settings import Settings, collect_process_facts
from corewise.measured.runtimes.trial_params import compute_rank_batch, require_defaults
from corewise.measured.runtimes.user_steps import StepJob
from corewise.measured.workloads.custom import CustomModule, CustomStep, build_custom

# Small, so that the module does not memorize its only batch while it is measured.
LEARNING_RATE = 1e-4
SEED = 1


def prepare_custom(params: TrialParameters, context: RankContext, settings: Settings) -> Job:
    """Prepare the job of the factory's module or step."""
    name, batch = params.workload, compute_rank_batch(params)
    # Sizes that a factory draws with `random` are the same in every process.
    random.seed(SEED)
    # Inputs differ between ranks. Data-parallel ranks start with the weights of rank 0.
    torch.manual_seed(SEED + context.rank)
    made = build_custom(name, batch, params.mode.value, params.arguments)
    if isinstance(made, CustomStep):
        require_defaults(
            params,
            (
                "dtype",
                "memory_format",
                "execution",
                "freezing",
                "data",
                "optimizer",
                "collectives",
                "learning_rate_rule",
            ),
            "a custom step decides it",
        )
        return StepJob(name, made, lambda: collect_process_facts(settings), settings.finish)
    require_defaults(params, ("data",), "a custom module brings its own inputs")
    made = _use_positions(name, made)
    _refuse_invalid(name, made, settings)
    return _build_module_job(made, batch, choose_learning_rate(params, LEARNING_RATE), context, settings)


def _build_module_job(
    made: CustomModule, batch: int, learning_rate: float, context: RankContext, settings: Settings
) -> Job:
    inputs, targets = tuple(map(settings.place, made.inputs)), settings.place(made.targets)

    def build_case(settings: Settings, group: RankGroup) -> CheckCase:
        shared_inputs = tuple(settings.place(group.share_from_first_rank(x)) for x in inputs)
        shared_targets = group.share_from_first_rank(targets)
        loss = (lambda outputs: compute_custom_loss(outputs, shared_targets)) if settings.training else None
        return CheckCase(
            shared_inputs,
            shared_inputs,
            loss,
            loss,
            group.loss_weight,
            may_need_own_dtype=True,
            determined_by=(shared_targets,) if settings.training else (),
        )

    batches = FixedBatch(inputs, targets, describe_shapes(made), inspect_traits(made))
    task = ModuleTask(made.module, batches, batch, compute_custom_loss, learning_rate, build_case)
    return build_job(task, settings, RankGroup(context, settings))


class KeywordModule(nn.Module):
    """Calls a module with its inputs by name."""

    def __init__(self, module: nn.Module, names: Tuple[str, ...]) -> None:
        super().__init__()
        self.module, self._names = module, names

    def forward(self, *inputs: Any) -> Any:
        return self.module(**dict(zip(self._names, inputs)))


class FixedBatch:
    """The factory's inputs, at every step."""

    def __init__(
        self, inputs: Tuple[Any, ...], targets: Any, shapes: str = "", traits: Optional[Mapping[str, bool]] = None
    ) -> None:
        self._batch = (inputs, targets)
        self._shapes, self._traits = shapes, dict(traits or {})

    def next(self) -> Tuple[Tuple[Any, ...], Any]:
        return self._batch

    def list_held_out(self) -> Sequence[Tuple[Tuple[Any, ...], Tensor]]:
        return ()

    def collect_facts(self) -> Mapping[str, Any]:
        facts: Dict[str, Any] = {"data": "given by the factory", "shapes": self._shapes, "traits": self._traits}
        images = [x for x in self._batch[0] if isinstance(x, Tensor) and x.is_floating_point() and x.dim() == 4]
        if self._traits.get("takes_images") and images:
            facts["pixels_per_sample"] = images[0].shape[-2] * images[0].shape[-1]
        return facts

    def close(self) -> None:
        return None


def describe_shapes(made: CustomModule) -> str:
    """Describe what must be equal in every start: the number of parameters and the input sizes per sample."""
    num_parameters = sum(p.numel() for p in made.module.parameters())
    sizes = ["×".join(map(str, x.shape[1:])) or "1" for x in made.inputs if isinstance(x, Tensor)]
    return f"{num_parameters:,} parameters, inputs of {' and '.join(sizes)}"


def inspect_traits(made: CustomModule) -> Dict[str, bool]:
    """Inspect which settings apply to a module, by the names of the fields of `Traits`.

    Images are floating-point inputs with four dimensions of a module with two-dimensional convolutions. Dropout
    is found as a layer, or as a probability that a layer holds and passes to a function.
    """
    parts = list(made.module.modules())
    has_convolution = any(isinstance(part, (nn.Conv2d, nn.ConvTranspose2d)) for part in parts)
    has_image = any(isinstance(x, Tensor) and x.is_floating_point() and x.dim() == 4 for x in made.inputs)
    return {
        "takes_images": has_convolution and has_image,
        "has_batch_norm": any(isinstance(part, _BatchNorm) for part in parts),
        "has_dropout": any(map(_drops_values, parts)),
    }


def _drops_values(part: nn.Module) -> bool:
    """Return whether a layer sets random values to zero in training."""
    if isinstance(part, _DropoutNd):
        return part.p > 0
    held = (value for name, value in vars(part).items() if "drop" in name.lower())
    return any(isinstance(value, float) and 0 < value <= 1 for value in held)


def compute_custom_loss(outputs: Any, targets: Any) -> Tensor:
    """Compute cross entropy for integer targets, squared error for others.

    Without targets it is the loss among the outputs, or else the mean square of the outputs.
    """
    made = list_float_tensors(outputs)
    if targets is None:
        own = outputs.get("loss") if isinstance(outputs, Mapping) else None
        if isinstance(own, Tensor) and own.dim() == 0:
            return own
        return torch.stack([t.square().mean() for t in made]).sum()
    if targets.is_floating_point():
        return functional.mse_loss(made[0], targets.to(made[0].dtype))
    return functional.cross_entropy(made[0], targets)


def _use_positions(name: str, made: CustomModule) -> CustomModule:
    """Turn a mapping of keyword inputs into inputs by position."""
    if len(made.inputs) != 1 or not isinstance(made.inputs[0], Mapping) or not isinstance(made.module, nn.Module):
        return made
    [inputs] = made.inputs
    wrong = [each for each in inputs if not (isinstance(each, str) and each.isidentifier())]
    if wrong:
        raise WorkloadError(f"{name}: the inputs have the key {wrong[0]!r}; keys are names of the module's arguments")
    return CustomModule(KeywordModule(made.module, tuple(inputs)), tuple(inputs.values()), made.targets)


def _refuse_invalid(name: str, made: CustomModule, settings: Settings) -> None:
    if not isinstance(made.module, nn.Module):
        raise WorkloadError(f"{name} returned a {type(made.module).__name__} instead of a torch.nn.Module")
    if not made.inputs or not any(isinstance(x, Tensor) for x in made.inputs):
        raise WorkloadError(
            f"{name} returned no tensor among the inputs; expected (module, (tensor, ...)) or a mapping"
        )
    if made.targets is not None and not isinstance(made.targets, Tensor):
        raise WorkloadError(f"{name} returned a {type(made.targets).__name__} instead of a tensor of targets")
    if settings.training and not any(p.requires_grad for p in made.module.parameters()):
        raise WorkloadError(f"{name}: the module has no parameters to train; measure it with mode infer")
