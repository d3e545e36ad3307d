"""Work that one rank does for all: the others learn whether it succeeded, so that none waits for it in vain.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Callable, Optional

from corewise.measured.runtimes.base import Infeasible
from corewise.measured.runtimes.communication.communicator import Communicator


class FirstRankFailed(Infeasible):
    """Rank 0 could not do its work for all; its own message has the reason."""


def run_on_first_rank(messages: Communicator, work: Callable[[], Any]) -> Any:
    """Run `work` on rank 0 and return its result there, None elsewhere.

    Raises:
        Exception: on rank 0, whatever `work` raised.
        FirstRankFailed: on the other ranks, if `work` raised.
    """
    result: Any = None
    failure: Optional[Exception] = None
    if messages.rank == 0:
        try:
            result = work()
        except Exception as problem:
            failure = problem
    succeeded = messages.agree(failure is None)
    if failure is not None:
        raise failure
    if not succeeded:
        raise FirstRankFailed("rank 0 failed; its message has the reason")
    return result


def broadcast_from_first(messages: Communicator, arrays: Any, values: Any) -> Any:
    """Return rank 0's float64 numpy values on every rank; all ranks pass an array of the same length."""
    shared = arrays.from_host(values)
    messages.broadcast(shared, 0)
    return arrays.to_host(shared)


def sum_over_ranks(messages: Communicator, arrays: Any, values: Any) -> Any:
    """Return the sum of the ranks' float64 numpy values on every rank."""
    shared = arrays.from_host(values)
    messages.allreduce(shared)
    return arrays.to_host(shared)
