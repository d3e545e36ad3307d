"""The contract of a runtime with the worker: import the framework once, then turn trials into jobs.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, Callable, Mapping, Optional, Protocol, Sequence

from corewise.measured.parameters import TrialParameters


class Infeasible(Exception):
    """Raised by `prepare` if this runtime or machine does not support the trial; its text is the reason."""


class NotNow(Infeasible):
    """Raised if memory or disk is short at the moment; the next `corewise run` tries again."""


class NoEffect(Infeasible):
    """Raised if a parameter has no effect on this workload, whatever its value."""


class MissingPart(Exception):
    """Raised if a framework or library is not installed; its text says what to install."""


class WorkloadError(Exception):
    """Raised if the factory of a user fails or breaks its contract."""


def is_out_of_memory(problem: BaseException) -> bool:
    """Return whether the host or a device ran out of memory.

    numpy raises MemoryError. The CPU allocator of torch and oneDNN raise a plain RuntimeError, and the errors
    of jax and TensorFlow cover more than memory. These can only be recognised by their text.
    """
    text = str(problem).lower()
    return isinstance(problem, MemoryError) or "allocate memory" in text or "out of memory" in text


def is_lost_connection(problem: BaseException) -> bool:
    """Return whether a rank failed because it lost the connection to another one.

    The operating system raises ConnectionError. gloo and nccl raise a plain RuntimeError through torch, which
    can only be recognised by its text.
    """
    text = str(problem).lower()
    by_text = isinstance(problem, RuntimeError) and any(part in text for part in ("connection", "gloo", "peer"))
    return by_text or isinstance(problem, ConnectionError)


@dataclasses.dataclass(frozen=True)
class Check:
    """The outcome of a numerical check: largest error, allowed error, and the reference of the comparison.

    `shared_s` is the time spent on a reference that later processes need not compute again.
    """

    error: float
    tolerance: float
    reference: str
    shared_s: float = 0.0

    @property
    def passed(self) -> bool:
        # An error of NaN must fail, which this comparison ensures.
        return self.error <= self.tolerance


@dataclasses.dataclass(frozen=True)
class RankContext:
    """One rank of a trial and its resources.

    Attributes:
        rank, num_ranks: counted over all nodes; the ranks of a node follow each other.
        rendezvous: a folder on this node that only the ranks of this trial on this node use.
        cache: a folder for compiler output and plans that nobody else can change; empty if none are made.
        host_free_bytes: free host memory before any rank of this run started.
        time_limit_s: the time limit of the run; None if it is unknown.
        references: a folder for references of numerical checks; empty if they are not kept.
        node_rank, num_nodes: the place of this node among those of the trial.
        address, port: where the first rank can listen, as every node reaches it; empty and 0 on one node.
        hosts: the name or address of each node's host; empty on one node.
    """

    rank: int
    num_ranks: int
    rendezvous: str
    num_cpus: int
    cache: str = ""
    host_free_bytes: Optional[int] = None
    time_limit_s: Optional[float] = None
    references: str = ""
    node_rank: int = 0
    num_nodes: int = 1
    address: str = ""
    port: int = 0
    hosts: Sequence[str] = ()

    @property
    def num_local_ranks(self) -> int:
        """The number of ranks on this node."""
        return self.num_ranks // self.num_nodes

    @property
    def local_rank(self) -> int:
        """The number of this rank among those of its node."""
        return self.rank - self.node_rank * self.num_local_ranks


class Job(abc.ABC):
    """A workload that is ready to step.

    Attributes:
        samples_per_step: workload samples (images) that one step of this rank completes.
        independent: True if ranks are replicas, False if they must step together.
    """

    samples_per_step: float
    independent: bool

    @abc.abstractmethod
    def check(self) -> Check:
        """Run the numerical check, once before any timing."""

    @abc.abstractmethod
    def step(self) -> None:
        """Run one whole step, which is finished on the device on return."""

    @abc.abstractmethod
    def agree(self, flag: bool) -> bool:
        """Return whether every rank passes True; independent ranks decide alone."""

    @abc.abstractmethod
    def read_facts(self) -> Mapping[str, Any]:
        """Read settings back from the framework after warm-up."""

    def collect_metrics(self, expected_step_s: float) -> Mapping[str, float]:
        """Collect figures that the worker does not measure itself; called after sampling."""
        return {}

    def collect_sampled_metrics(self, num_steps: int) -> Mapping[str, float]:
        """Collect figures of the last steps; ranks that step together call it together."""
        return {}

    def report_phases(self, report: Callable[[str], Any]) -> None:
        """Accept a function to report phases of long work after sampling."""
        return

    def collect_sampled_facts(self) -> Mapping[str, Any]:
        """Collect facts found during sampling."""
        return {}

    def collect_notes(self) -> Sequence[str]:
        """Collect sentences that a reader of the figures should know."""
        return ()

    def read_loss(self) -> Optional[float]:
        """Return the training loss of the last step, or None."""
        return None

    def close(self) -> None:
        """Release the resources of the job."""
        return


class ReplicaJob(Job):
    """A job whose ranks are independent replicas."""

    independent = True

    def agree(self, flag: bool) -> bool:
        return flag


class Runtime(Protocol):
    """A framework, as the worker uses it."""

    def warm(self) -> None:
        """Import the framework only: run no operator and open no device."""
        ...

    def warm_for(self, params: TrialParameters) -> None:
        """Import what trials like this one also need; called in the parent before it forks."""
        ...

    def read_versions(self) -> Mapping[str, str]:
        """Read the versions of the framework and its libraries."""
        ...

    def prepare(self, params: TrialParameters, context: RankContext) -> Job:
        """Set threads, build the workload and its input; raise Infeasible if it is not supported."""
        ...
