"""Run a kernel on the arrays of any runtime as a job.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import difflib
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Tuple

from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.arrays.array_contract import Arrays
from corewise.measured.runtimes.base import Check, Infeasible, Job, RankContext
from corewise.measured.runtimes.communication.communicator import Communicator
from corewise.measured.runtimes.communication.lone_communicator import LoneCommunicator
from corewise.measured.runtimes.devices.gpu_clocks import sample_clocks
from corewise.measured.runtimes.memory_room import build_memory_refusal, compute_memory_share
from corewise.measured.runtimes.trial_params import require_defaults
from corewise.measured.workloads.kernels.kernel import Kernel, KernelRun, KernelSetup

# The estimate exceeds the measured peak by this factor.
MEMORY_MARGIN = 1.1
# Blocks of the check, compiled programs, and pages that an allocator holds back.
EXTRA_BYTES = 2**26
Facts = Callable[[], Mapping[str, Any]]


class KernelJob(Job):
    """One run of a kernel. Its ranks are independent replicas unless they share a communicator."""

    def __init__(self, run: KernelRun, facts: Facts, communicator: Optional[Communicator] = None) -> None:
        self.run = run
        self.independent = communicator is None
        # The ranks of a distributed kernel complete one sample together.
        self.samples_per_step = 1.0 if communicator is None else 1.0 / communicator.num_ranks
        self._facts = facts
        self._communicator = communicator

    def check(self) -> Check:
        return self.run.check()

    def step(self) -> None:
        self.run.step()

    def agree(self, flag: bool) -> bool:
        return flag if self._communicator is None else self._communicator.agree(flag)

    def collect_metrics(self, expected_step_s: float) -> Mapping[str, float]:
        return self.run.collect_metrics()

    def read_facts(self) -> Mapping[str, Any]:
        """Read the facts of the framework and of the kernel; of a replica on a GPU also its clocks under load."""
        known = dict(self._facts())
        if self._communicator is not None:
            known.update(self._communicator.read_facts())
        # Ranks that step together would stop after different numbers of steps.
        if "gpu_uuid" in known and self._communicator is None:
            known.update(sample_clocks(self.run.step, str(known["gpu_uuid"])))
        return {**known, **self.run.read_facts()}

    def collect_sampled_facts(self) -> Mapping[str, Any]:
        # A rank that ended now would close connections that others may still use.
        if self._communicator is not None:
            self._communicator.barrier()
        return {}

    def collect_notes(self) -> Sequence[str]:
        return self.run.collect_notes()

    def close(self) -> None:
        self.run.close()
        if self._communicator is not None:
            self._communicator.close()


def prepare_kernel(
    kernel: Kernel,
    arrays: Arrays,
    params: TrialParameters,
    context: RankContext,
    facts: Facts = dict,
    open_communicator: Optional[Callable[[], Communicator]] = None,
) -> KernelJob:
    """Prepare the job of a kernel; raise Infeasible before allocating arrays if it cannot run.

    Args:
        open_communicator: connects the ranks of the trial; called only for a distributed kernel.
    """
    args = resolve_kernel_args(kernel, params)
    dtype = params.dtype.value
    require_kernel_point(kernel, arrays, params, args)
    kernel = kernel.share_among(context.num_ranks)
    require_memory(kernel, args, dtype, compute_memory_share(arrays, context), arrays, context.num_local_ranks)
    communicator = None
    if kernel.is_distributed:
        communicator = _connect_ranks(kernel, arrays, context, open_communicator)
    setup = KernelSetup(
        arrays=arrays,
        dtype=dtype,
        args=args,
        # The ranks of a distributed kernel work on the same problem.
        seed=0 if kernel.is_distributed else context.rank,
        folder=context.rendezvous,
        num_threads=params.threads,
        float32_precision=params.float32_precision.value,
        num_ranks=context.num_local_ranks,
        communicator=communicator,
        first_address=context.address,
    )
    try:
        return KernelJob(kernel.build(setup), facts, communicator)
    except BaseException:
        if communicator is not None:
            communicator.close()
        raise


def _connect_ranks(
    kernel: Kernel, arrays: Arrays, context: RankContext, open_communicator: Optional[Callable[[], Communicator]]
) -> Communicator:
    if context.num_ranks == 1:
        return LoneCommunicator()
    if open_communicator is None:
        raise Infeasible(
            f"{kernel.name} passes messages, which the runtime {arrays.runtime} does not support; use one process"
        )
    return open_communicator()


def resolve_kernel_args(kernel: Kernel, params: TrialParameters) -> Dict[str, Any]:
    """Merge the arguments with the defaults of the kernel; raise Infeasible for an unknown name."""
    given, known = params.arguments, kernel.parameters
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise Infeasible(f"{kernel.name} has no parameter {name!r}; {hint}it has {', '.join(known) or 'none'}")
    return {**known, **given}


def require_kernel_point(kernel: Kernel, arrays: Arrays, params: TrialParameters, args: Mapping[str, Any]) -> None:
    """Raise Infeasible if the kernel or the framework does not support the parameters."""
    name, dtype = kernel.name, params.dtype.value
    if arrays.runtime not in kernel.runtimes:
        raise Infeasible(f"{name} does not run on {arrays.runtime}; it runs on {', '.join(kernel.runtimes)}")
    if params.mode not in kernel.modes:
        raise Infeasible(f"{name} has no mode {params.mode.value!r}; it has {', '.join(kernel.modes)}")
    require_defaults(params, ("memory_format", "execution", "freezing", "data"), f"{name} is a kernel, not a model")
    if params.batch != 1:
        raise Infeasible(f"batch {params.batch}: a step of {name} is one sample; omit batch, or set it to 1")
    try:
        kernel.count_work(params.mode.value, args, dtype)
        dtypes, refusal = kernel.list_dtypes(args), kernel.explain_refusal(params)
    except ValueError as problem:
        raise Infeasible(str(problem)) from problem
    if refusal is not None:
        raise Infeasible(refusal)
    if dtype not in dtypes:
        raise Infeasible(f"{name} has no dtype {dtype}; it has {', '.join(dtypes)}")
    if dtype not in arrays.dtypes:
        raise Infeasible(f"{arrays.runtime} has no dtype {dtype}; it has {', '.join(arrays.dtypes)}")


def estimate_peak_bytes(kernel: Kernel, args: Mapping[str, Any], dtype: str, arrays: Arrays) -> int:
    """Estimate the peak memory of a run, including set-up, copies by the framework and the check."""
    factor, extra_bytes = _estimate_overhead(kernel, args, dtype, arrays)
    return int(factor * kernel.estimate_memory_bytes(args, dtype)) + extra_bytes


def _estimate_overhead(kernel: Kernel, args: Mapping[str, Any], dtype: str, arrays: Arrays) -> Tuple[float, int]:
    """Return the factor over the bytes of the kernel on these arrays, and the extra bytes on top."""
    factor = kernel.estimate_memory_factors(args, dtype).get(arrays.runtime, arrays.memory_factor)
    if arrays.device == "cpu":
        return MEMORY_MARGIN * factor, EXTRA_BYTES
    # On a GPU the check takes host memory only.
    return (1.0, 0) if arrays.writes_in_place else (factor, 0)


def require_memory(
    kernel: Kernel, args: Mapping[str, Any], dtype: str, free_bytes: int, arrays: Arrays, num_ranks: int = 1
) -> None:
    """Raise Infeasible if the kernel needs more memory than is free, and say what would fit."""
    needed_bytes = estimate_peak_bytes(kernel, args, dtype, arrays)
    if needed_bytes <= free_bytes:
        return
    factor, extra_bytes = _estimate_overhead(kernel, args, dtype, arrays)
    room_bytes = int((free_bytes - extra_bytes) / factor)
    fitting = kernel.fit_to_memory(args, dtype, room_bytes) if room_bytes > 0 else args
    changed = [f"{name} {value}" for name, value in fitting.items() if args.get(name) != value]
    fits = f"the largest that fits is {', '.join(changed)}" if changed else "no smaller size fits either"
    raise build_memory_refusal(
        f"{kernel.name} needs {needed_bytes} bytes ({needed_bytes / 1e9:.3g} GB) in {dtype} on "
        f"{arrays.runtime}, {free_bytes} ({free_bytes / 1e9:.3g} GB) are free; {fits}",
        needed_bytes,
        arrays.device,
        num_ranks,
    )
