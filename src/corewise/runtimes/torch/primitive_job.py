"""One operator as a job, with what oneDNN and, where it is named, benchdnn say of it.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping, Optional

import torch

from corewise.runtimes.base import Check, Infeasible, MissingPart, RankContext
from corewise.runtimes.gpu_clocks import clocks_while
from corewise.runtimes.host_memory import free_host_bytes
from corewise.runtimes.params import require_defaults
from corewise.runtimes.torch.onednn_calls import call_facts, onednn_calls
from corewise.runtimes.torch.settings import Settings, gpu_facts, process_facts
from corewise.workloads.primitives.benchdnn import BenchdnnError, run_benchdnn

FLOAT32_ROUNDOFF = 2.0**-24
SHORT_ROUNDOFF = {"tf32": 2.0**-11, "bf16": 2.0**-8}


class PrimitiveJob:
    """Calls one operator in every step; several ranks of it are replicas that know nothing of each other."""

    samples_per_step = 1.0
    independent = True

    def __init__(
        self,
        settings: Settings,
        operate: Callable[[], Any],
        check: Callable[[Any], Check],
        facts: Mapping[str, Any],
        benchdnn: Optional[Callable[[], Mapping[str, Any]]] = None,
    ) -> None:
        self._settings, self._operate, self._checked = settings, operate, check
        self._benchdnn, self._known = benchdnn, dict(facts)
        if settings.device.type == "cuda":
            self.step = self._step_and_wait  # type: ignore[method-assign]
        else:
            self.step = operate  # type: ignore[method-assign]  # nothing between the clock and the operator

    def check(self) -> Check:
        """The numbers of a step; then oneDNN and benchdnn are heard, before anything is timed."""
        done = self._checked(self._operate())
        if self._settings.device.type == "cpu" and torch.backends.mkldnn.enabled:
            self._known.update(call_facts(onednn_calls(self._operate)))
        if self._benchdnn is not None:
            self._known.update(self._benchdnn())
        return done

    def step(self) -> None:
        self._operate()

    def _step_and_wait(self) -> None:
        self._operate()
        self._settings.finish()

    def agree(self, flag: bool) -> bool:
        return flag

    def facts(self) -> Mapping[str, Any]:
        return {**process_facts(self._settings), **gpu_facts(self._settings), **self._clocks(), **self._known}

    def _clocks(self) -> Mapping[str, Any]:
        """The GPU's clocks while it computes, where torch and nvidia-smi tell."""
        if self._settings.device.type != "cuda":
            return {}
        uuid = getattr(torch.cuda.get_device_properties(self._settings.device), "uuid", None)
        return {} if uuid is None else clocks_while(self.step, f"GPU-{uuid}")

    def loss(self) -> Optional[float]:
        return None

    def close(self) -> None:
        return None


def require_operator(params: Mapping[str, Any], name: str) -> None:
    """Raises where the trial asks for what a single operator does not have."""
    require_defaults(params, ("execution", "freezing", "data"), f"{name} is a single operator")


def require_room(needed_bytes: int, settings: Settings, context: RankContext, smaller: str) -> None:
    """Raises Infeasible when the tensors do not fit; `smaller` says what to change."""
    if settings.device.type == "cuda":
        free_bytes = int(torch.cuda.mem_get_info(settings.device)[0])
    else:
        free_bytes = free_host_bytes() // max(1, context.num_ranks)
    if needed_bytes > free_bytes:
        raise Infeasible(
            f"the problem needs {needed_bytes} bytes ({needed_bytes / 1e9:.3g} GB), "
            f"{free_bytes} ({free_bytes / 1e9:.3g} GB) are free; {smaller}"
        )


def roundoffs(settings: Settings, dtype: torch.dtype) -> Dict[str, float]:
    """What stored numbers and sums are rounded by."""
    stored = torch.finfo(dtype).eps / 2
    summed = min(stored, FLOAT32_ROUNDOFF)
    short = torch.backends.cudnn.allow_tf32 or torch.backends.cuda.matmul.allow_tf32
    if settings.device.type == "cuda" and dtype == torch.float32 and short:
        stored = max(stored, SHORT_ROUNDOFF["tf32"])
    stored = max(stored, SHORT_ROUNDOFF.get(settings.float32_precision, 0.0))
    return {"stored_roundoff": stored, "summed_roundoff": summed}


def benchdnn_facts(words: Any, num_threads: int) -> Callable[[], Mapping[str, Any]]:
    """What asks benchdnn for the same problem on the same cores."""

    def ask() -> Mapping[str, Any]:
        try:
            return run_benchdnn(words, num_threads).facts()
        except BenchdnnError as problem:
            raise MissingPart(f"args.benchdnn: {problem}") from problem

    return ask
