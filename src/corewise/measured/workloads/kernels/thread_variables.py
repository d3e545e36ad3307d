"""Variables that set the threads of numerical libraries, for commands that load them afterwards.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import os
from typing import Callable, Collection, MutableMapping, Optional

from corewise.shared_cores import are_cores_busy

NUM_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "BLIS_NUM_THREADS")
# Idle threads sleep at once. OpenBLAS takes the binary logarithm of the cycles that they spin, at least 4.
PASSIVE_WAITING = {"OMP_WAIT_POLICY": "PASSIVE", "OPENBLAS_THREAD_TIMEOUT": "4"}
# They set how threads wait, which changes no result. With one of these, the user has chosen.
WAITING_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OPENBLAS_THREAD_TIMEOUT")


def set_thread_variables(
    num_threads: Optional[int],
    environment: Optional[MutableMapping[str, str]] = None,
    check_load: Callable[[Collection[int]], bool] = are_cores_busy,
) -> str:
    """Set the number of threads, if given; let idle ones sleep where other processes use the same CPUs.

    Returns a note for the user if idle threads sleep, else an empty text. A thread that spins on a CPU keeps
    another from the work that it waits for: an iteration of conjugate gradients takes ten times as long, or more.
    """
    environment = os.environ if environment is None else environment
    if num_threads is not None:
        environment.update(dict.fromkeys(NUM_THREADS, str(num_threads)))
    cpus = os.sched_getaffinity(0)
    has_one_thread = (num_threads or len(cpus)) == 1
    if has_one_thread or any(name in environment for name in WAITING_VARIABLES) or not check_load(cpus):
        return ""
    environment.update(PASSIVE_WAITING)
    return "other processes use these CPUs: idle threads sleep (OMP_WAIT_POLICY=PASSIVE)"
