"""Every communicator fulfils the contract, among real ranks that are forked from one process."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

Need = Callable[[bool, str], None]
RANKS = Path(__file__).with_name("communicator_ranks.py")
OPERATIONS = {
    *("send", "exchange", "allreduce_float32", "allreduce_float64", "allgather", "all_to_all"),
    *("broadcast_from_first", "broadcast_from_last", "reduce_scatter", "agree"),
}


class CommunicatorContract:
    """The tests of a communicator; subclasses set its runtime and backend."""

    runtime: str
    backend: str

    def run_ranks(
        self, need: Need, folder: Path, num_ranks: int, before: Sequence[str] = (), after: Sequence[str] = ()
    ) -> list[Any]:
        """Run the ranks, and return what each of them reports, in their order."""
        if self.backend == "mpi":
            need(shutil.which("mpirun") is not None, "mpirun")
        command = [*before, sys.executable, str(RANKS), self.runtime, self.backend, str(num_ranks), str(folder), *after]
        done = subprocess.run(command, capture_output=True, text=True, timeout=180)
        assert done.returncode == 0, done.stderr
        return sorted((json.loads(line) for line in done.stdout.splitlines()), key=lambda each: int(each["rank"]))

    def check_ranks(self, reports: list[Any], num_ranks: int) -> None:
        assert [report["rank"] for report in reports] == list(range(num_ranks))
        for report in reports:
            assert set(report["results"]) >= OPERATIONS
            assert all(report["results"].values()), report["results"]
            assert report["facts"]["collectives_backend"] == self.backend
            assert report["left"] == []

    def test_every_operation_is_right_among_two_ranks(self, need: Need, tmp_path: Path) -> None:
        self.check_ranks(self.run_ranks(need, tmp_path, 2), 2)

    @pytest.mark.slow
    def test_every_operation_is_right_among_three_ranks(self, need: Need, tmp_path: Path) -> None:
        self.check_ranks(self.run_ranks(need, tmp_path, 3), 3)


class TestGloo(CommunicatorContract):
    runtime, backend = "torch", "gloo"


class TestShared(CommunicatorContract):
    runtime, backend = "torch", "shared"

    def test_collectives_stay_in_memory_and_other_messages_are_counted(self, need: Need, tmp_path: Path) -> None:
        for report in self.run_ranks(need, tmp_path, 2):
            assert report["facts"]["num_shared_memory_nodes"] == 1
            pairwise = {"send": 1} if report["rank"] == 0 else {"receive": 1}
            assert report["facts"]["calls_over_gloo"] == {"exchange": 1, **pairwise}
            assert report["refusals"]["broadcast"] == ""
            assert report["refusals"]["exchange"].startswith("shared memory carries allreduce, allgather, all_to_all")

    def test_between_nodes_only_sums_use_memory(self, need: Need, tmp_path: Path) -> None:
        need(subprocess.run(["unshare", "-r", "true"], capture_output=True).returncode == 0, "user namespaces")
        reports = self.run_ranks(need, tmp_path, 2, after=["separate"])
        self.check_ranks(reports, 2)
        for report in reports:
            assert report["facts"]["num_shared_memory_nodes"] == 2
            counts = report["facts"]["calls_over_gloo"]
            assert (counts["broadcast"], counts["allgather"], counts["all_to_all"], counts["reduce_scatter"]) == (
                2,
                1,
                1,
                1,
            )
            assert "allreduce" not in counts
            assert report["refusals"]["broadcast"].startswith(
                "shared memory on 2 nodes carries allreduce, not broadcast"
            )


class TestMpi(CommunicatorContract):
    runtime, backend = "numpy", "mpi"

    def test_a_helper_thread_reduces_while_another_votes(self, need: Need, tmp_path: Path) -> None:
        for report in self.run_ranks(need, tmp_path, 2):
            assert report["facts"]["mpi_threads"] is True
            assert report["results"]["helper_thread"] is True

    @pytest.mark.slow
    @pytest.mark.parametrize("mount", ["-o size=1m", "-o ro"])
    def test_without_room_in_shared_memory_the_trial_folder_is_used(
        self, need: Need, tmp_path: Path, mount: str
    ) -> None:
        need(os.geteuid() == 0 and shutil.which("unshare") is not None, "root, to mount a small /dev/shm")
        script = f'mount -t tmpfs {mount} tmpfs /dev/shm && exec "$@"'
        reports = self.run_ranks(need, tmp_path, 2, before=["unshare", "-m", "sh", "-c", script, "sh"])
        self.check_ranks(reports, 2)
        assert reports[0]["facts"]["mpi_segments"] == str(tmp_path)

    @pytest.mark.slow
    def test_mpich_works_as_well(self, need: Need, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        library = Path("/usr/lib/x86_64-linux-gnu/libmpich.so.12")
        need(library.exists() and shutil.which("mpirun.mpich") is not None, "MPICH")
        # Debian's MPICH lacks the name that mpi4py asks for.
        (tmp_path / "libmpi.so.12").symlink_to(library)
        monkeypatch.setenv("MPI4PY_MPIABI", "mpich")
        monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
        reports = self.run_ranks(need, tmp_path, 2)
        self.check_ranks(reports, 2)
        # The mpirun of Open MPI comes first in PATH, and belongs to another MPI.
        assert "MPICH" in reports[0]["facts"]["mpi_library"]
        assert reports[0]["facts"]["mpirun"].endswith(("mpich", "hydra"))


class TestMpiWithTorch(CommunicatorContract):
    runtime, backend = "torch", "mpi"
    pytestmark = pytest.mark.slow
