"""Messages through MPI, for ranks that a warm parent forked: numpy arrays and tensors in host memory.

Measured side: standard library, numpy and mpi4py only, Python 3.9. mpi4py is imported by the rank, after the fork.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, Mapping, Optional

import numpy as np

from corewise.measured.runtimes.base import Infeasible, RankContext
from corewise.measured.runtimes.communication.communicator import Communicator
from corewise.measured.runtimes.mpi.mpirun_command import OPEN_MPI, identify_library
from corewise.measured.runtimes.mpi.mpirun_job import MpirunJob
from corewise.owned_files import build_owned_prefix, remove_abandoned

# Open MPI places the shared memory of a rank here. Its own default leaves files behind after a kill.
SHARED_MEMORY_FOLDER = "/dev/shm"
FOLDER_NAME = "corewise-mpi"
FOLDER_VARIABLE = "OMPI_MCA_btl_vader_backing_directory"
# Room that Open MPI takes for each rank of a node: a segment of 4 MiB, and a margin.
SEGMENT_BYTES = 6 << 20
# If the other ranks do not come to the end within this time, one of them has failed.
CLOSE_LIMIT_S = 2.0


class MpiCommunicator(Communicator):
    """Passes contiguous arrays through MPI without copying them in Python.

    MPI is initialized for several threads if the library supports that. A helper thread uses its own copy of the
    communicator: see `duplicate`.

    Raises:
        Infeasible: mpi4py or a matching mpirun is missing; the reason says which.
        NotNow: mpirun failed; the reason has its output.
    """

    backend = "mpi"

    def __init__(self, context: RankContext) -> None:
        mpi = _import_mpi()
        library = identify_library(mpi.Get_library_version())
        self._job: Optional[MpirunJob] = MpirunJob(context, library)
        os.environ.update(self._job.variables)
        folder = _create_segment_folder(context) if library.family == OPEN_MPI else ""
        if folder:
            os.environ[FOLDER_VARIABLE] = folder
        mpi.Init_thread(mpi.THREAD_MULTIPLE)
        self._mpi, self._world = mpi, mpi.COMM_WORLD
        self.rank, self.num_ranks = self._world.Get_rank(), self._world.Get_size()
        if (self.rank, self.num_ranks) != (context.rank, context.num_ranks):
            raise RuntimeError(
                f"mpirun made this rank {self.rank} of {self.num_ranks}, not {context.rank} of {context.num_ranks}"
            )
        self._world.Barrier()
        # Every rank has opened the segments of the others: without names they end with the ranks, also after a kill.
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
        self._vote, self._outcome = np.zeros(1, np.int32), np.zeros(1, np.int32)
        self._facts: Dict[str, Any] = {
            "collectives_backend": self.backend,
            "mpi_library": library.version,
            "mpi_threads": self.supports_threads,
        }
        if folder:
            self._facts["mpi_segments"] = os.path.dirname(folder)
        if self._job.program:
            self._facts["mpirun"] = self._job.program

    @property
    def supports_threads(self) -> bool:
        """Whether several threads may call MPI at the same time."""
        return bool(self._mpi.Query_thread() == self._mpi.THREAD_MULTIPLE)

    def duplicate(self) -> MpiCommunicator:
        """Return a copy whose messages do not mix with those of this one, for a helper thread; all ranks call it."""
        copied = object.__new__(MpiCommunicator)
        copied.__dict__.update(self.__dict__)
        copied._job = None
        copied._world = self._world.Dup()
        copied._vote, copied._outcome = np.zeros(1, np.int32), np.zeros(1, np.int32)
        return copied

    def send(self, array: Any, to: int) -> None:
        self._world.Send(view_as_buffer(array), to)

    def receive(self, array: Any, source: int) -> None:
        self._world.Recv(view_as_buffer(array), source)

    def exchange(self, sent: Any, to: int, received: Any, source: int) -> None:
        self._world.Sendrecv(view_as_buffer(sent), to, recvbuf=view_as_buffer(received), source=source)

    def allreduce(self, array: Any) -> None:
        self._world.Allreduce(self._mpi.IN_PLACE, view_as_buffer(array))

    def allgather(self, gathered: Any, piece: Any) -> None:
        self._world.Allgather(view_as_buffer(piece), view_as_buffer(gathered))

    def all_to_all(self, received: Any, sent: Any) -> None:
        self._world.Alltoall(view_as_buffer(sent), view_as_buffer(received))

    def broadcast(self, array: Any, root: int) -> None:
        self._world.Bcast(view_as_buffer(array), root)

    def reduce_scatter(self, piece: Any, array: Any) -> None:
        self._world.Reduce_scatter_block(view_as_buffer(array), view_as_buffer(piece))

    def barrier(self) -> None:
        self._world.Barrier()

    def agree(self, flag: bool) -> bool:
        self._vote[0] = flag
        self._world.Allreduce(self._vote, self._outcome, self._mpi.MIN)
        return bool(self._outcome[0])

    def read_facts(self) -> Mapping[str, Any]:
        return self._facts

    def close(self) -> None:
        """End MPI if all ranks come here; otherwise only this rank's part, because MPI_Finalize would never return."""
        if self._job is None:
            return
        if self._all_arrive():
            self._mpi.Finalize()
        self._job.close()
        self._job = None

    def _all_arrive(self) -> bool:
        with contextlib.suppress(self._mpi.Exception):
            request, deadline = self._world.Ibarrier(), time.monotonic() + CLOSE_LIMIT_S
            while not request.Test():
                if time.monotonic() > deadline:
                    return False
                time.sleep(0.0005)
            return True
        return False


def view_as_buffer(array: Any) -> Any:
    """View a contiguous numpy array, or a tensor of torch in host memory, as an array that mpi4py takes."""
    return array if isinstance(array, np.ndarray) else array.detach().numpy()


def _import_mpi() -> Any:
    try:
        settings: Any = importlib.import_module("mpi4py")
        settings.rc.initialize = settings.rc.finalize = False
        return importlib.import_module("mpi4py.MPI")
    except ImportError as problem:
        hint = "pip install mpi4py" if problem.name == "mpi4py" else "install the MPI that it was built for"
        raise Infeasible(f"collectives mpi needs mpi4py, which cannot be imported ({problem}): {hint}") from problem


def _create_segment_folder(context: RankContext) -> str:
    """Create the folder of Open MPI's shared memory, below TMPDIR if /dev/shm is missing or too small."""
    with contextlib.suppress(OSError):
        if context.local_rank == 0:
            remove_abandoned(FOLDER_NAME, Path(SHARED_MEMORY_FOLDER))
        state = os.statvfs(SHARED_MEMORY_FOLDER)
        if state.f_bavail * state.f_frsize >= SEGMENT_BYTES * context.num_local_ranks:
            return tempfile.mkdtemp("", build_owned_prefix(FOLDER_NAME), SHARED_MEMORY_FOLDER)
    return tempfile.mkdtemp("", f"{FOLDER_NAME}-", context.rendezvous)
