"""A torch module ready to be trained or asked.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import ctypes
import dataclasses
from typing import Any, Callable, Mapping, Optional, Protocol, Tuple, cast

import torch
from torch import Tensor, nn

from corewise.runtimes.base import Check, Infeasible, Job
from corewise.runtimes.torch.bfloat16 import lacking_cell, refuse_lacking_cells
from corewise.runtimes.torch.checking import Case, check_module, tensors
from corewise.runtimes.torch.compiling import compiled_in_turn
from corewise.runtimes.torch.execution import configured, placed
from corewise.runtimes.torch.freezing import fold, num_prepared_weights
from corewise.runtimes.torch.parallel import RankGroup
from corewise.runtimes.torch.prepared import prepare
from corewise.runtimes.torch.quantization import Quantised, quantised
from corewise.runtimes.torch.quickened import num_quickened
from corewise.runtimes.torch.settings import Settings, gpu_facts, process_facts, weights_format
from corewise.runtimes.torch.sgd import CpuSgd
from corewise.runtimes.torch.widths import planned, width_facts
from corewise.runtimes.torch.winograd import num_winograd_layers

MOMENTUM = 0.9
NUM_SCALING_BATCHES = 2  # from which int8 learns its scales


class Batches(Protocol):
    """Where a step's input comes from."""

    def next(self) -> Tuple[Tuple[Any, ...], Any]:
        """The inputs of the next step and its targets."""
        ...

    def facts(self) -> Mapping[str, Any]: ...

    def close(self) -> None: ...


@dataclasses.dataclass(frozen=True)
class Task:
    """What a module works on, whoever described it."""

    module: nn.Module
    batches: Batches
    batch: int
    loss: Callable[[Any, Any], Tensor]  # of outputs and targets
    learning_rate: float
    case_for: Callable[[Settings, RankGroup], Case]  # what the numerical check compares on


class ModuleJob:
    """What training and inference share."""

    def __init__(self, task: Task, settings: Settings, group: RankGroup) -> None:
        self.samples_per_step = float(task.batch)
        self.independent = not group.together
        self._settings, self._group, self._batches = settings, group, task.batches
        self._case_for = task.case_for
        refuse_lacking_cells(task.module, settings)
        self._module: nn.Module = placed(task.module, settings)
        network, self._num_folded = fold(self._module) if settings.freezing == "fold" else (self._module, 0)
        self._num_prepared = 0
        if settings.freezing == "full" and settings.execution == "eager":
            dtype = torch.bfloat16 if settings.dtype == "bfloat16" else torch.float32
            network, self._num_prepared = prepare(network, task.batches.next()[0], dtype)
        self._num_winograd = num_winograd_layers(network)
        self._quantised: Optional[Quantised] = None
        if settings.dtype == "int8":
            examples = [task.batches.next()[0] for _ in range(NUM_SCALING_BATCHES)]
            self._quantised = quantised(network, examples)
            network = self._quantised.module
        self._num_prepared_before = num_prepared_weights()
        self._configured = configured(network, settings, group.wrap)
        self._output_dtype = ""
        self._first_call_s = self._planning_s = 0.0

    def check(self) -> Check:
        """The configured module against itself in float64, on an input of its own."""
        if self._settings.execution == "malleable":
            self._planning_s = planned(self._configured, self._batches.next()[0], self._settings)
        case = self._case_for(self._settings, self._group)
        try:
            with compiled_in_turn(self._settings, self._group.context):
                verdict, self._first_call_s = check_module(
                    self._module, self._configured, self._settings, case
                )
        except RuntimeError as problem:
            refusal = lacking_cell(problem, self._settings)
            if refusal is not None:
                raise refusal from problem
            if self._settings.freezing == "full" and "not supported" in str(problem):
                said = str(problem).strip().splitlines()[-1].replace("RuntimeError: ", "")
                raise Infeasible(f"freezing full: {said}") from problem
            raise
        is_copy = self._quantised is not None or self._settings.memory_format == "blocked"
        if is_copy or self._settings.freezing != "none":
            self._module = self._configured  # lets go of the weights that are no longer used
        del case
        _return_free_memory()
        return verdict

    def step(self) -> None:
        raise NotImplementedError

    def agree(self, flag: bool) -> bool:
        return self._group.agree(flag)

    def facts(self) -> Mapping[str, Any]:
        return {
            **process_facts(self._settings),
            **self._batches.facts(),
            **self._freezing_facts(),
            **self._quantised_facts(),
            **self._width_facts(),
            **self._quickened_facts(),
            "weights_memory_format": weights_format(self._configured),
            "output_dtype": self._output_dtype,
            **gpu_facts(self._settings),
            "first_call_s": self._first_call_s,  # compilation included, where there is any
        }

    def close(self) -> None:
        if self._settings.execution == "malleable":
            cast(Any, self._configured).close()
        self._batches.close()
        self._group.close()

    def _freezing_facts(self) -> Mapping[str, Any]:
        """Proof that weights were frozen; raises Infeasible when nothing came of it."""
        if self._settings.freezing == "fold":
            return {"num_folded": self._num_folded}
        if self._settings.freezing == "none":
            return {}
        if self._settings.execution == "script":
            return {"num_weights_left": sum(1 for _ in self._configured.parameters())}
        num_prepared = self._num_prepared or num_prepared_weights() - self._num_prepared_before
        if num_prepared == 0:
            raise Infeasible("freezing full: the compiler found no weights that it could prepare")
        if not self._num_prepared:
            return {"num_prepared_weights": num_prepared}
        return {"num_prepared_weights": num_prepared, "num_winograd_layers": self._num_winograd}

    def _width_facts(self) -> Mapping[str, Any]:
        if self._settings.execution != "malleable":
            return {}
        return width_facts(self._configured, self._planning_s)

    def _quickened_facts(self) -> Mapping[str, Any]:
        if self._settings.execution != "quickened":
            return {}
        is_last = self._settings.memory_format == "channels_last"
        return {"num_quickened_layers": num_quickened(self._module, channels_last=is_last)}

    def _quantised_facts(self) -> Mapping[str, Any]:
        made = self._quantised
        if made is None:
            return {}
        return {"int8_scales": made.how, "int8_engine": made.engine, "num_int8_layers": made.num_layers}

    def _note(self, outputs: Any) -> None:
        if not self._output_dtype:
            self._output_dtype = ", ".join(
                sorted({str(t.dtype).replace("torch.", "") for t in tensors(outputs)})
            )


class InferJob(ModuleJob):
    """Forward passes in evaluation mode."""

    def step(self) -> None:
        inputs, _ = self._batches.next()
        with torch.inference_mode(), self._settings.autocast():
            outputs = self._configured(*inputs)
        self._settings.finish()
        self._note(outputs)

    def loss(self) -> Optional[float]:
        return None


class TrainJob(ModuleJob):
    """Forward, backward and update; gradients averaged where several ranks train together."""

    def __init__(self, task: Task, settings: Settings, group: RankGroup) -> None:
        super().__init__(task, settings, group)
        self._loss_of = task.loss
        self._last_loss: Optional[Tensor] = None
        parameters = [p for p in self._module.parameters() if p.requires_grad]
        self._scaler: Optional[torch.amp.GradScaler] = None
        self._optimizer: Any
        if settings.device.type == "cuda":
            self._optimizer = torch.optim.SGD(parameters, lr=task.learning_rate, momentum=MOMENTUM)
            self._scaler = torch.amp.GradScaler("cuda", enabled=settings.dtype == "float16")
        else:
            self._optimizer = CpuSgd(parameters, lr=task.learning_rate, momentum=MOMENTUM)

    def step(self) -> None:
        inputs, targets = self._batches.next()
        self._optimizer.zero_grad()
        with self._settings.autocast():
            outputs = self._configured(*inputs)
            loss = self._loss_of(outputs, targets)
        if self._scaler is None:
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()
        else:
            self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            self._scaler.step(self._optimizer)
            self._scaler.update()
        self._last_loss = loss.detach()
        self._settings.finish()
        self._note(outputs)

    def loss(self) -> Optional[float]:
        return None if self._last_loss is None else float(self._last_loss)

    @property
    def optimizer(self) -> Any:
        """What moves the parameters."""
        return self._optimizer


def _return_free_memory() -> None:
    """Give back what the check used, so that steps find the heap of a fresh process."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)


def job_for(task: Task, settings: Settings, group: RankGroup) -> Job:
    """The task as a job of the trial's mode."""
    return TrainJob(task, settings, group) if settings.training else InferJob(task, settings, group)
