"""The job of a single operator, with facts from oneDNN and, on request, from benchdnn.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Tuple, Union

import torch

from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes import memory_room
from corewise.measured.runtimes.base import Check, MissingPart, RankContext, ReplicaJob
from corewise.measured.runtimes.devices.gpu_clocks import sample_clocks
from corewise.measured.runtimes.torch.arrays import TorchArrays
from corewise.measured.runtimes.torch.cache_size import read_last_level_cache_bytes
from corewise.measured.runtimes.torch.primitives.gpu_repetition import GpuRepetition, choose_num_inputs
from corewise.measured.runtimes.torch.primitives.onednn_calls import record_onednn_calls, summarize_calls
from corewise.measured.runtimes.torch.settings import Settings, collect_gpu_facts, collect_process_facts
from corewise.measured.runtimes.trial_params import require_defaults
from corewise.measured.workloads.primitives.benchdnn import BenchdnnError, run_first_known
from corewise.measured.workloads.primitives.matmul import Matmul
from corewise.measured.workloads.primitives.primitive_workload import PrimitiveWorkload

# The seeds of a rank's inputs differ by more than the ranks' seeds.
SEED_STRIDE = 100_003
Operate = Callable[[], Any]
# Builds the operator on inputs drawn from a seed, and its check.
Make = Callable[[int], Tuple[Operate, Callable[[Any], Check]]]
FLOAT32_ROUNDOFF = 2.0**-24
SHORT_ROUNDOFF = {"tf32": 2.0**-11, "bf16": 2.0**-8}


class PrimitiveJob(ReplicaJob):
    """Calls one operator per step; ranks are independent replicas.

    On a GPU, a step executes the operator many times, on several inputs, so that neither launch overhead nor
    cached inputs distort the time.
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
        self._peer: Mapping[str, Any] = {}
        self._operate, self._checked = make(seed)
        if settings.device.type == "cuda":
            cache_bytes = read_last_level_cache_bytes(on_gpu=True)
            others = [make(seed + SEED_STRIDE * n)[0] for n in range(1, choose_num_inputs(moved_bytes, cache_bytes))]
            turns = GpuRepetition([self._operate, *others], settings.finish, recordable)
            self.samples_per_step = float(turns.num_executions)
            self._known.update(turns.collect_facts())
            self.step = turns.run_step  # type: ignore[method-assign]
        else:
            # Without a wrapper, nothing but the operator is timed.
            self.step = self._operate  # type: ignore[method-assign]

    def check(self) -> Check:
        """Check the results of a step, then query oneDNN and benchdnn before anything is timed."""
        verdict = self._checked(self._operate())
        if self._settings.device.type == "cpu" and torch.backends.mkldnn.enabled:
            self._known.update(summarize_calls(record_onednn_calls(self._operate)))
        if self._benchdnn is not None:
            self._peer = self._benchdnn()
            self._known.update(self._peer)
        return verdict

    def step(self) -> None:
        self._operate()

    def read_facts(self) -> Mapping[str, Any]:
        return {
            **collect_process_facts(self._settings),
            **collect_gpu_facts(self._settings),
            **self._measure_clocks(),
            **self._known,
        }

    def collect_metrics(self, step_s: float) -> Mapping[str, float]:
        """Return the seconds that benchdnn took for the same problem on the same cores."""
        return {name: float(value) for name, value in self._peer.items() if name.endswith("_s")}

    def _measure_clocks(self) -> Mapping[str, Any]:
        """Measure the GPU's clocks while it computes, if torch and nvidia-smi report them."""
        if self._settings.device.type != "cuda":
            return {}
        uuid = getattr(torch.cuda.get_device_properties(self._settings.device), "uuid", None)
        return {} if uuid is None else sample_clocks(self.step, f"GPU-{uuid}")


def require_operator(params: TrialParameters, name: str) -> None:
    """Raise Infeasible if the trial sets parameters that a single operator does not have."""
    require_defaults(params, ("execution", "freezing", "data"), f"{name} is a single operator")


def require_room(
    workload: Union[PrimitiveWorkload, Matmul], params: TrialParameters, settings: Settings, context: RankContext
) -> None:
    """Raise Infeasible if the tensors do not fit into memory, with sizes that would."""
    free_bytes = memory_room.compute_memory_share(TorchArrays(settings.device), context)
    memory_room.require_room(workload, params, context, free_bytes)


def compute_roundoffs(settings: Settings, dtype: torch.dtype) -> Dict[str, float]:
    """Compute the roundoff of stored values and of sums."""
    stored = torch.finfo(dtype).eps / 2
    summed = min(stored, FLOAT32_ROUNDOFF)
    short = torch.backends.cudnn.allow_tf32 or torch.backends.cuda.matmul.allow_tf32
    if settings.device.type == "cuda" and dtype == torch.float32 and short:
        stored = max(stored, SHORT_ROUNDOFF["tf32"])
    stored = max(stored, SHORT_ROUNDOFF.get(settings.float32_precision, 0.0))
    return {"stored_roundoff": stored, "summed_roundoff": summed}


def build_benchdnn_query(commands: Sequence[Sequence[str]], num_threads: int) -> Callable[[], Mapping[str, Any]]:
    """Build a function that runs the first command that benchdnn supports, on the same cores."""

    def ask() -> Mapping[str, Any]:
        try:
            return run_first_known(commands, num_threads).to_facts()
        except BenchdnnError as problem:
            raise MissingPart(f"args.benchdnn: {problem}") from problem

    return ask
