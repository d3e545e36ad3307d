"""One operator as a job, with what oneDNN and, where it is named, benchdnn say of it.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Tuple, Union

import torch

from corewise.runtimes import room
from corewise.runtimes.base import Check, MissingPart, RankContext, ReplicaJob
from corewise.runtimes.gpu_clocks import clocks_while
from corewise.runtimes.params import require_defaults
from corewise.runtimes.torch.arrays import TorchArrays
from corewise.runtimes.torch.cache_size import last_level_cache_bytes
from corewise.runtimes.torch.gpu_turns import GpuTurns, num_inputs
from corewise.runtimes.torch.onednn_calls import call_facts, onednn_calls
from corewise.runtimes.torch.settings import Settings, gpu_facts, process_facts
from corewise.workloads.primitives.benchdnn import BenchdnnError, run_first_known
from corewise.workloads.primitives.matmul import Matmul
from corewise.workloads.primitives.workload import PrimitiveWorkload

SEEDS_APART = 100_003  # between the inputs of a rank: further than ranks are
Operate = Callable[[], Any]
Make = Callable[[int], Tuple[Operate, Callable[[Any], Check]]]  # of a seed: operator on its inputs, check
FLOAT32_ROUNDOFF = 2.0**-24
SHORT_ROUNDOFF = {"tf32": 2.0**-11, "bf16": 2.0**-8}


class PrimitiveJob(ReplicaJob):
    """Calls one operator in every step; several ranks of it are replicas that know nothing of each other.

    On a GPU a step is many executions, on inputs that take turns, so that neither starting them nor the cache
    is what is timed.
    """

    samples_per_step = 1.0

    def __init__(
        self,
        settings: Settings,
        make: Make,
        seed: int,
        facts: Mapping[str, Any],
        benchdnn: Optional[Callable[[], Mapping[str, Any]]] = None,
        moved_bytes: float = 0.0,
        recordable: bool = True,
    ) -> None:
        self._settings, self._benchdnn, self._known = settings, benchdnn, dict(facts)
        self._operate, self._checked = make(seed)
        if settings.device.type == "cuda":
            cache_bytes = last_level_cache_bytes(on_gpu=True)
            others = [make(seed + SEEDS_APART * n)[0] for n in range(1, num_inputs(moved_bytes, cache_bytes))]
            turns = GpuTurns([self._operate, *others], settings.finish, recordable)
            self.samples_per_step = float(turns.num_executions)
            self._known.update(turns.facts())
            self.step = turns.step  # type: ignore[method-assign]
        else:
            self.step = self._operate  # type: ignore[method-assign]  # nothing between clock and operator

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

    def facts(self) -> Mapping[str, Any]:
        return {**process_facts(self._settings), **gpu_facts(self._settings), **self._clocks(), **self._known}

    def _clocks(self) -> Mapping[str, Any]:
        """The GPU's clocks while it computes, where torch and nvidia-smi tell."""
        if self._settings.device.type != "cuda":
            return {}
        uuid = getattr(torch.cuda.get_device_properties(self._settings.device), "uuid", None)
        return {} if uuid is None else clocks_while(self.step, f"GPU-{uuid}")


def require_operator(params: Mapping[str, Any], name: str) -> None:
    """Raises where the trial asks for what a single operator does not have."""
    require_defaults(params, ("execution", "freezing", "data"), f"{name} is a single operator")


def require_room(
    workload: Union[PrimitiveWorkload, Matmul],
    params: Mapping[str, Any],
    settings: Settings,
    context: RankContext,
) -> None:
    """Raises Infeasible when the tensors do not fit, with what would."""
    free_bytes = room.share_of_memory(TorchArrays(settings.device), context)
    room.require_room(workload, params, context, free_bytes)


def roundoffs(settings: Settings, dtype: torch.dtype) -> Dict[str, float]:
    """What stored numbers and sums are rounded by."""
    stored = torch.finfo(dtype).eps / 2
    summed = min(stored, FLOAT32_ROUNDOFF)
    short = torch.backends.cudnn.allow_tf32 or torch.backends.cuda.matmul.allow_tf32
    if settings.device.type == "cuda" and dtype == torch.float32 and short:
        stored = max(stored, SHORT_ROUNDOFF["tf32"])
    stored = max(stored, SHORT_ROUNDOFF.get(settings.float32_precision, 0.0))
    return {"stored_roundoff": stored, "summed_roundoff": summed}


def benchdnn_facts(commands: Sequence[Sequence[str]], num_threads: int) -> Callable[[], Mapping[str, Any]]:
    """What asks benchdnn for the same problem on the same cores; the first command that it knows."""

    def ask() -> Mapping[str, Any]:
        try:
            return run_first_known(commands, num_threads).facts()
        except BenchdnnError as problem:
            raise MissingPart(f"args.benchdnn: {problem}") from problem

    return ask
