"""Jobs that train a torch module or run inference with it.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import ctypes
import dataclasses
from typing import Any, Callable, Mapping, Optional, Protocol, Sequence, Tuple, cast

import torch
from torch import Tensor, nn

from corewise.accelerate.fast_kernels.use_fast_kernels import count_fast_layers
from corewise.accelerate.fast_kernels.winograd_convolution import count_winograd_layers
from corewise.accelerate.freeze.freeze_module import prepare_network
from corewise.accelerate.freeze.weight_folding import count_prepared_weights, fold_module
from corewise.accelerate.quantize.quantize_module import QuantizedModule, quantize_module
from corewise.accelerate.unsupported import Unsupported
from corewise.measured.runtimes.base import Check, Infeasible, Job
from corewise.measured.runtimes.torch.bfloat16 import explain_missing_cell, refuse_unsupported_lstms
from corewise.measured.runtimes.torch.modules.compile_once import compile_in_turn
from corewise.measured.runtimes.torch.modules.data_parallel import RankGroup
from corewise.measured.runtimes.torch.modules.malleable_module import collect_width_facts, plan_for_inputs
from corewise.measured.runtimes.torch.modules.module_preparation import configure_module, place_module
from corewise.measured.runtimes.torch.modules.numerical_check import CheckCase, check_module, list_float_tensors
from corewise.measured.runtimes.torch.modules.optimizers import build_optimizer
from corewise.measured.runtimes.torch.modules.step_timeline import summarize_local_steps, summarize_shared_steps
from corewise.measured.runtimes.torch.settings import (
    Settings,
    collect_gpu_facts,
    collect_process_facts,
    detect_weights_format,
)

# Batches on which int8 scales are calibrated.
NUM_SCALING_BATCHES = 2


class Batches(Protocol):
    """A source of input batches."""

    def next(self) -> Tuple[Tuple[Any, ...], Any]:
        """Return the inputs of the next step and its targets."""
        ...

    def list_held_out(self) -> Sequence[Tuple[Tuple[Any, ...], Tensor]]:
        """Return batches that are never trained on, with their labels; empty if the labels mean nothing."""
        ...

    def collect_facts(self) -> Mapping[str, Any]: ...

    def close(self) -> None: ...


@dataclasses.dataclass(frozen=True)
class ModuleTask:
    """A module with its data, loss and numerical check.

    Attributes:
        loss: Computes the loss of outputs and targets.
        build_case: Builds the inputs of the numerical check.
    """

    module: nn.Module
    batches: Batches
    batch: int
    loss: Callable[[Any, Any], Tensor]
    learning_rate: float
    build_case: Callable[[Settings, RankGroup], CheckCase]


class ModuleJob(Job):
    """The common part of training and inference."""

    optimizer: Any = None

    def __init__(self, task: ModuleTask, settings: Settings, group: RankGroup) -> None:
        self.samples_per_step = float(task.batch)
        self.independent = not group.is_distributed
        self._settings, self._group, self._batches = settings, group, task.batches
        self._build_case = task.build_case
        refuse_unsupported_lstms(task.module, settings)
        self._module: nn.Module = place_module(task.module, settings)
        self._num_folded = self._num_prepared = 0
        self._quantized: Optional[QuantizedModule] = None
        try:
            network = self._transform(task)
        except Unsupported as problem:
            # A compiler freezes weights with its own means and may support the module.
            scope = "execution eager, " if str(problem).startswith("freezing full: ") else ""
            raise Infeasible(f"{scope}{problem}") from problem
        self._num_winograd = count_winograd_layers(network)
        self._num_prepared_before = count_prepared_weights()
        self._configured = configure_module(network, settings, group.wrap, group.context.time_limit_s)
        self._output_dtype = ""
        self._first_call_s = self._planning_s = 0.0

    def _transform(self, task: ModuleTask) -> nn.Module:
        """Freeze or quantize the module as the settings say; raise Unsupported if it cannot be."""
        settings, network = self._settings, self._module
        if settings.freezing == "fold":
            network, self._num_folded = fold_module(network)
        elif settings.freezing == "full" and settings.execution == "eager":
            dtype = torch.bfloat16 if settings.dtype == "bfloat16" else torch.float32
            network, self._num_prepared = prepare_network(network, task.batches.next()[0], dtype)
        if settings.dtype == "int8":
            examples = [task.batches.next()[0] for _ in range(NUM_SCALING_BATCHES)]
            self._quantized = quantize_module(network, examples)
            network = self._quantized.module
        return network

    def check(self) -> Check:
        """Compare the configured module with a float64 reference on separate inputs."""
        if self._settings.execution == "malleable":
            self._planning_s = plan_for_inputs(self._configured, self._batches.next()[0], self._settings)
        case = self._build_case(self._settings, self._group)
        try:
            with compile_in_turn(self._settings, self._group.context):
                verdict, self._first_call_s = check_module(
                    self._module, self._configured, self._settings, case, self._group.context.references
                )
        except RuntimeError as problem:
            refusal = _explain_refusal(problem, self._settings)
            if refusal is None:
                raise
            raise refusal from problem
        is_copy = self._quantized is not None or self._settings.memory_format == "blocked"
        if is_copy or self._settings.freezing != "none":
            # The original weights are no longer used; this frees them.
            self._module = self._configured
        del case
        release_free_memory()
        return verdict

    def agree(self, flag: bool) -> bool:
        return self._group.agree(flag)

    def read_facts(self) -> Mapping[str, Any]:
        return {
            **collect_process_facts(self._settings),
            **self._batches.collect_facts(),
            **self._collect_freezing_facts(),
            **self._collect_int8_facts(),
            **self._collect_width_facts(),
            **self._count_fast_kernels(),
            "weights_memory_format": detect_weights_format(self._configured),
            "output_dtype": self._output_dtype,
            **collect_gpu_facts(self._settings),
            "first_call_s": self._first_call_s,
        }

    def collect_metrics(self, step_s: float) -> Mapping[str, float]:
        """Return the time spent on planning or compiling."""
        execution = self._settings.execution
        if execution == "malleable":
            return {"planning_s": self._planning_s}
        if execution in ("eager", "fast-kernels"):
            return {}
        return {"compile_s": max(0.0, self._first_call_s - step_s)}

    def close(self) -> None:
        if self._settings.execution == "malleable":
            cast(Any, self._configured).close()
        self._batches.close()
        self._group.close()

    def _collect_freezing_facts(self) -> Mapping[str, Any]:
        """Collect the proof that weights were frozen; raise Infeasible if none were."""
        if self._settings.freezing == "fold":
            return {"num_folded": self._num_folded}
        if self._settings.freezing == "none":
            return {}
        if self._settings.execution == "script":
            return {"num_weights_left": sum(1 for _ in self._configured.parameters())}
        num_prepared = self._num_prepared or count_prepared_weights() - self._num_prepared_before
        if num_prepared == 0:
            raise Infeasible("freezing full: torch's compiler prepared no weights of this module")
        if not self._num_prepared:
            return {"num_prepared_weights": num_prepared}
        return {"num_prepared_weights": num_prepared, "num_winograd_layers": self._num_winograd}

    def _collect_width_facts(self) -> Mapping[str, Any]:
        if self._settings.execution != "malleable":
            return {}
        return collect_width_facts(self._configured, self._planning_s)

    def _count_fast_kernels(self) -> Mapping[str, Any]:
        if self._settings.execution != "fast-kernels":
            return {}
        is_last = self._settings.memory_format == "channels_last"
        return {"num_fast_kernel_layers": count_fast_layers(self._module, channels_last=is_last)}

    def _collect_int8_facts(self) -> Mapping[str, Any]:
        made = self._quantized
        if made is None:
            return {}
        return {
            "int8_scales": made.scaling,
            "int8_engine": made.engine,
            "int8_method": made.method,
            "int8_error": made.error,
            "num_int8_layers": made.num_layers,
            "num_float32_layers": made.num_float_layers,
        }

    def _record_output_dtype(self, outputs: Any) -> None:
        if not self._output_dtype:
            self._output_dtype = ", ".join(
                sorted({str(t.dtype).replace("torch.", "") for t in list_float_tensors(outputs)})
            )


class InferJob(ModuleJob):
    """Forward passes in evaluation mode."""

    def step(self) -> None:
        inputs, _ = self._batches.next()
        with torch.inference_mode(), self._settings.autocast():
            outputs = self._configured(*inputs)
        self._settings.finish()
        self._record_output_dtype(outputs)


class TrainJob(ModuleJob):
    """Forward pass, backward pass and update; gradients are averaged over data-parallel ranks."""

    def __init__(self, task: ModuleTask, settings: Settings, group: RankGroup) -> None:
        super().__init__(task, settings, group)
        self._loss_of, self._learning_rate = task.loss, task.learning_rate
        self._timeline = group.timeline
        self._last_loss: Optional[Tensor] = None
        parameters = [p for p in self._module.parameters() if p.requires_grad]
        self._scaler: Optional[torch.amp.GradScaler] = None
        self.optimizer = build_optimizer(parameters, settings, task.learning_rate)
        if settings.device.type == "cuda":
            self._scaler = torch.amp.GradScaler("cuda", enabled=settings.dtype == "float16")

    def step(self) -> None:
        self._timeline.begin_step()
        inputs, targets = self._batches.next()
        self._timeline.mark_input()
        self.optimizer.zero_grad()
        with self._settings.autocast():
            outputs = self._configured(*inputs)
            loss = self._loss_of(outputs, targets)
        if self._scaler is None:
            loss.backward()  # type: ignore[no-untyped-call]
            self._timeline.mark_backward()
            self.optimizer.step()
        else:
            self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            self._scaler.step(self.optimizer)
            self._scaler.update()
        self._last_loss = loss.detach()
        self._settings.finish()
        self._timeline.end_step()
        self._record_output_dtype(outputs)

    def read_loss(self) -> Optional[float]:
        return None if self._last_loss is None else float(self._last_loss)

    def read_facts(self) -> Mapping[str, Any]:
        return {
            **super().read_facts(),
            "optimizer": self._settings.optimizer,
            "learning_rate": self._learning_rate,
            "global_batch": int(self.samples_per_step) * self._group.num_ranks,
            **self._group.read_facts(),
        }

    def collect_sampled_metrics(self, num_steps: int) -> Mapping[str, float]:
        """Return where the time of the steps went and, with labelled data, the accuracy on held-out samples."""
        steps, group = self._timeline.take_last(num_steps), self._group
        metrics = summarize_local_steps(steps)
        if self._settings.device.type == "cuda" and group.is_distributed:
            # The host's clock does not see when the GPU computes and when it communicates.
            del metrics["compute_s"]
        elif group.is_distributed:
            metrics.update(summarize_shared_steps(steps, group.rank, group.gather))
        held_out = self._batches.list_held_out()
        if held_out:
            correct = sum(count_correct(self._module, self._settings, inputs, labels) for inputs, labels in held_out)
            counts = group.gather([float(correct), float(sum(len(labels) for _, labels in held_out))])
            metrics["accuracy"] = sum(each[0] for each in counts) / sum(each[1] for each in counts)
        return metrics


def count_correct(module: nn.Module, settings: Settings, inputs: Tuple[Any, ...], labels: Tensor) -> int:
    """Count the samples whose class the module predicts in evaluation mode."""
    module.eval()
    try:
        with torch.no_grad(), settings.autocast():
            outputs = module(*inputs)
    finally:
        module.train()
    scores = outputs[0] if isinstance(outputs, (tuple, list)) else outputs
    predicted = (scores.squeeze(-1) > 0).long() if scores.shape[-1] == 1 else scores.argmax(dim=-1)
    return int((predicted == labels).sum())


def _explain_refusal(problem: RuntimeError, settings: Settings) -> Optional[Infeasible]:
    """Return a refusal if torch's error says that it has no such operator, otherwise None.

    Torch and oneDNN raise a plain RuntimeError, so only its text identifies the cause.
    """
    refusal = explain_missing_cell(problem, settings)
    if refusal is None and settings.freezing == "full" and "not supported" in str(problem):
        message = str(problem).strip().splitlines()[-1].replace("RuntimeError: ", "")
        return Infeasible(f"freezing full: {message}")
    return refusal


def release_free_memory() -> None:
    """Return free memory to the system, so that the next allocations touch new pages."""
    # Only glibc has this function.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def build_job(task: ModuleTask, settings: Settings, group: RankGroup) -> Job:
    """Build the job of a task in the trial's mode."""
    return TrainJob(task, settings, group) if settings.training else InferJob(task, settings, group)
