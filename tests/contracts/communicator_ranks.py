"""Fork the ranks of a communicator from a warm parent, let each try every operation, and print a line of JSON per rank.

Arguments: runtime, backend, number of ranks, and a folder that the ranks share. With `separate` as the last argument,
the ranks share no memory, as on several nodes.
"""

import ctypes
import importlib
import json
import os
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

import numpy as np

from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.base import RankContext
from corewise.measured.workloads.registry import load_attribute

OPENERS = {
    "torch": "corewise.measured.runtimes.torch.communication.open_communicator:open_communicator",
    "numpy": "corewise.measured.runtimes.numpy.runtime:open_communicator",
}
SIZE = 12_000
# The flag of unshare(2) for a user namespace.
CLONE_NEWUSER = 0x10000000


def draw(rank: int, runtime: str, dtype: str = "float32") -> Any:
    """Draw the array of a rank, which every rank can draw."""
    array = np.random.default_rng(rank).standard_normal(SIZE).astype(dtype)
    if runtime == "numpy":
        return array
    import torch

    return torch.from_numpy(array)


def try_operations(communicator: Any, runtime: str) -> dict[str, Any]:
    """Return whether the result of each operation is right on this rank."""
    me, count = communicator.rank, communicator.num_ranks
    after, before = (me + 1) % count, (me - 1) % count
    arrays = [np.asarray(draw(rank, runtime)) for rank in range(count)]
    total = np.sum(arrays, axis=0, dtype=np.float64)
    results: dict[str, Any] = {}

    def is_close(array: Any, expected: Any) -> bool:
        return bool(np.allclose(np.asarray(array), expected, rtol=1e-5, atol=1e-5))

    received = draw(me, runtime) * 0
    if me == 0:
        communicator.send(draw(0, runtime), count - 1)
    elif me == count - 1:
        communicator.receive(received, 0)
    results["send"] = me != count - 1 or is_close(received, arrays[0])

    communicator.exchange(draw(me, runtime), after, received, before)
    results["exchange"] = is_close(received, arrays[before])

    for dtype in ("float32", "float64"):
        array = draw(me, runtime, dtype)
        communicator.allreduce(array)
        results[f"allreduce_{dtype}"] = is_close(array, total)

    piece_size = SIZE // count
    pieces = [array[:piece_size] for array in arrays]
    gathered = draw(me, runtime)
    communicator.allgather(gathered, draw(me, runtime)[:piece_size])
    results["allgather"] = is_close(gathered, np.concatenate(pieces))

    swapped = draw(me, runtime) * 0
    communicator.all_to_all(swapped, draw(me, runtime))
    mine = slice(me * piece_size, (me + 1) * piece_size)
    results["all_to_all"] = is_close(swapped, np.concatenate([array[mine] for array in arrays]))

    for root in (0, count - 1):
        array = draw(me, runtime)
        communicator.broadcast(array, root)
        results[f"broadcast_from_{'first' if root == 0 else 'last'}"] = is_close(array, arrays[root])

    piece = draw(me, runtime)[:piece_size].copy() if runtime == "numpy" else draw(me, runtime)[:piece_size].clone()
    communicator.reduce_scatter(piece, draw(me, runtime))
    results["reduce_scatter"] = is_close(piece, total[mine])

    communicator.barrier()
    votes = [communicator.agree(True), communicator.agree(me == 0), communicator.agree(False)]
    results["agree"] = votes == [True, False, False]
    return results


def try_helper_thread(communicator: Any, runtime: str) -> bool:
    """Return whether a helper thread can reduce while this thread votes."""
    copy, total = communicator.duplicate(), draw(communicator.rank, runtime) * 0 + 1
    thread = threading.Thread(target=lambda: [copy.allreduce(total) for _ in range(5)])
    thread.start()
    votes = [communicator.agree(True) for _ in range(50)]
    thread.join()
    return all(votes) and bool(np.all(np.asarray(total) == float(communicator.num_ranks) ** 5))


def be_rank(rank: int, runtime: str, backend: str, num_ranks: int, folder: Path) -> dict[str, Any]:
    params = TrialParameters.from_mapping(
        {"workload": "communication", "mode": "infer", "collectives": backend, "processes": num_ranks}
    )
    communicator = load_attribute(OPENERS[runtime])(params, RankContext(rank, num_ranks, str(folder), 1))
    results = try_operations(communicator, runtime)
    if backend == "mpi":
        results["helper_thread"] = try_helper_thread(communicator, runtime)
    facts = dict(communicator.read_facts())
    refusals = {name: communicator.explain_unsupported(name) for name in ("broadcast", "exchange")}
    communicator.close()
    left = [str(path) for path in Path("/dev/shm").glob("*") if f"-{os.getpid()}-" in path.name]
    return {"rank": communicator.rank, "results": results, "facts": facts, "refusals": refusals, "left": left}


if __name__ == "__main__":
    runtime, backend, num_ranks, folder = sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])
    if runtime == "torch":
        # As in a warm parent, the framework is imported before the ranks are forked.
        importlib.import_module("torch.distributed")
    children = []
    for rank in range(num_ranks):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                if "separate" in sys.argv and ctypes.CDLL(None).unshare(CLONE_NEWUSER):
                    raise OSError("no user namespace for this rank")
                line = json.dumps(be_rank(rank, runtime, backend, num_ranks, folder)) + "\n"
                os.write(1, line.encode())
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        children.append(child)
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children))
