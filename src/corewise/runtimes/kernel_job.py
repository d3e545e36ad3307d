"""A kernel on a framework's arrays as a job: what every runtime does with a kernel.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import difflib
from typing import Any, Callable, Dict, Mapping, Sequence, Tuple

from corewise.runtimes.arrays import Arrays
from corewise.runtimes.base import Check, Infeasible, RankContext, ReplicaJob
from corewise.runtimes.gpu_clocks import clocks_while
from corewise.runtimes.params import require_defaults
from corewise.runtimes.room import no_room, share_of_memory
from corewise.workloads.base import workload_args
from corewise.workloads.kernels.base import Kernel, KernelRun, Setup

MARGIN = 1.1  # of what is announced over what was measured
BESIDE_BYTES = 2**26  # the check's blocks, programs that are compiled, and pages that an allocator keeps
Facts = Callable[[], Mapping[str, Any]]


class KernelJob(ReplicaJob):
    """A kernel's run; several ranks of it are replicas that know nothing of each other."""

    samples_per_step = 1.0

    def __init__(self, run: KernelRun, facts: Facts) -> None:
        self.run = run
        self._facts = facts

    def check(self) -> Check:
        return self.run.check()

    def step(self) -> None:
        self.run.step()

    def facts(self) -> Mapping[str, Any]:
        """The framework's facts, then the kernel's own; on a GPU with its clocks while it computes."""
        known = dict(self._facts())
        if "gpu_uuid" in known:
            known.update(clocks_while(self.run.step, str(known["gpu_uuid"])))
        return {**known, **self.run.facts()}

    def notes(self) -> Sequence[str]:
        """What the kernel has to say beside its figures; nothing, unless it has a method `notes`."""
        say = getattr(self.run, "notes", None)
        return tuple(say()) if say is not None else ()

    def close(self) -> None:
        self.run.close()


def prepare_kernel(
    kernel: Kernel, arrays: Arrays, params: Mapping[str, Any], context: RankContext, facts: Facts = dict
) -> KernelJob:
    """The job of a kernel; raises Infeasible, before anything large is made, where it cannot be run."""
    args = kernel_args(kernel, params)
    dtype = str(params["dtype"])
    require_kernel_point(kernel, arrays, params, args)
    require_memory(kernel, args, dtype, share_of_memory(arrays, context), arrays, context.num_ranks)
    setup = Setup(
        arrays=arrays,
        dtype=dtype,
        args=args,
        seed=context.rank,
        folder=context.rendezvous,
        num_threads=int(params["threads"]),
        float32_precision=str(params.get("float32_precision", "default")),
        num_ranks=context.num_ranks,
    )
    return KernelJob(kernel.build(setup), facts)


def kernel_args(kernel: Kernel, params: Mapping[str, Any]) -> Dict[str, Any]:
    """The kernel's own parameters with its defaults; a name it does not have is refused."""
    given, known = workload_args(params), kernel.parameters
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise Infeasible(
                f"{kernel.name} has no parameter {name!r}; {hint}it has {', '.join(known) or 'none'}"
            )
    return {**known, **given}


def require_kernel_point(
    kernel: Kernel, arrays: Arrays, params: Mapping[str, Any], args: Mapping[str, Any]
) -> None:
    """Raises where the kernel or the framework has no such point."""
    name, dtype = kernel.name, str(params["dtype"])
    if arrays.runtime not in kernel.runtimes:
        raise Infeasible(f"{name} does not run on {arrays.runtime}; it runs on {', '.join(kernel.runtimes)}")
    if params["mode"] not in kernel.modes:
        raise Infeasible(f"{name} has no mode {params['mode']!r}; it has {', '.join(kernel.modes)}")
    require_defaults(
        params, ("memory_format", "execution", "freezing", "data"), f"{name} is no model and takes no images"
    )
    if int(params["batch"]) != 1:
        raise Infeasible(f"batch {params['batch']}: a step of {name} is one sample; leave batch out, or 1")
    try:
        kernel.work(str(params["mode"]), args, dtype)
        dtypes = kernel.dtypes(args)
    except ValueError as problem:
        raise Infeasible(str(problem)) from problem
    if dtype not in dtypes:
        raise Infeasible(f"{name} has no dtype {dtype}; it has {', '.join(dtypes)}")
    if dtype not in arrays.dtypes:
        raise Infeasible(f"{arrays.runtime} has no dtype {dtype}; it has {', '.join(arrays.dtypes)}")


def announced_bytes(kernel: Kernel, args: Mapping[str, Any], dtype: str, arrays: Arrays) -> int:
    """The most memory that a run takes: set-up, the framework's copies and the check included."""
    factor, beside_bytes = _over_needed(kernel, args, dtype, arrays)
    return int(factor * kernel.needed_bytes(args, dtype)) + beside_bytes


def _over_needed(kernel: Kernel, args: Mapping[str, Any], dtype: str, arrays: Arrays) -> Tuple[float, int]:
    """What the kernel's bytes are multiplied with on these arrays, and what comes on top of that."""
    own = getattr(kernel, "memory_factors", None)
    factors: Mapping[str, float] = own(args, dtype) if own is not None else {}
    factor = factors.get(arrays.runtime, arrays.memory_factor)
    if arrays.device == "cpu":
        return MARGIN * factor, BESIDE_BYTES
    return (1.0, 0) if arrays.writes_in_place else (factor, 0)  # what is checked is checked on the host


def require_memory(
    kernel: Kernel, args: Mapping[str, Any], dtype: str, free_bytes: int, arrays: Arrays, num_ranks: int = 1
) -> None:
    """Raises where the kernel needs more memory than is free, and says what would fit."""
    needed_bytes = announced_bytes(kernel, args, dtype, arrays)
    if needed_bytes <= free_bytes:
        return
    factor, beside_bytes = _over_needed(kernel, args, dtype, arrays)
    room_bytes = int((free_bytes - beside_bytes) / factor)
    fitting = kernel.largest_that_fits(args, dtype, room_bytes) if room_bytes > 0 else args
    changed = [f"{name} {value}" for name, value in fitting.items() if args.get(name) != value]
    fits = f"the largest that fits is {', '.join(changed)}" if changed else "no smaller size fits either"
    raise no_room(
        f"{kernel.name} needs {needed_bytes} bytes ({needed_bytes / 1e9:.3g} GB) in {dtype} on "
        f"{arrays.runtime}, {free_bytes} ({free_bytes / 1e9:.3g} GB) are free; {fits}",
        needed_bytes,
        arrays.device,
        num_ranks,
    )
