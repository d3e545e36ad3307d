"""The mpirun that belongs to mpi4py's library is found, or the reason names what is there instead."""

from pathlib import Path

import pytest

from corewise.measured.runtimes.base import Infeasible
from corewise.measured.runtimes.mpi.mpirun_command import (
    MPICH,
    OPEN_MPI,
    MpiLibrary,
    build_mpirun_command,
    build_mpirun_environment,
    find_mpirun,
    identify_library,
)

OPEN_MPI_4 = MpiLibrary(OPEN_MPI, "Open MPI v4.1.4")
MPICH_4 = MpiLibrary(MPICH, "MPICH Version: 4.0.2")
RELAY = ("python", "-c", "code", "name")


def write_mpirun(folder: Path, name: str, version: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{version}'\n")
    path.chmod(0o755)


def test_the_library_is_identified_by_its_version_text() -> None:
    debian = "Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4, repo rev: v4.1.4, May 26, 2022"
    assert identify_library(debian) == OPEN_MPI_4
    assert identify_library("MPICH Version:      4.0.2\nMPICH Device: ch4:ucx\n").family == MPICH
    assert identify_library("Intel(R) MPI Library 2021.9 for Linux* OS").family == MPICH
    with pytest.raises(Infeasible, match="not supported: Some other MPI"):
        identify_library("Some other MPI 1.0")


def test_an_mpirun_of_another_mpi_is_passed_over(tmp_path: Path) -> None:
    write_mpirun(tmp_path, "mpirun", "HYDRA build details: Version: 4.0.2")
    write_mpirun(tmp_path, "mpirun.openmpi", "mpirun.openmpi (OpenRTE) 4.1.4")
    assert find_mpirun(OPEN_MPI_4, str(tmp_path)) == str(tmp_path / "mpirun.openmpi")
    assert find_mpirun(MPICH_4, str(tmp_path)) == str(tmp_path / "mpirun")


@pytest.mark.parametrize(
    ("version", "found"),
    [
        ("HYDRA build details: Version: 4.0.2", "mpirun is MPICH 4.0.2"),
        ("mpirun (Open MPI) 5.0.3", "mpirun is Open MPI 5.0.3"),
        ("something else", "mpirun is not an mpirun that Corewise knows"),
    ],
)
def test_a_wrong_mpirun_is_named_with_the_library(tmp_path: Path, version: str, found: str) -> None:
    write_mpirun(tmp_path, "mpirun", version)
    with pytest.raises(Infeasible, match=r"mpi4py is built for Open MPI v4\.1\.4") as refused:
        find_mpirun(OPEN_MPI_4, str(tmp_path))
    assert found in str(refused.value)


def test_a_missing_mpirun_is_said(tmp_path: Path) -> None:
    with pytest.raises(Infeasible, match="no mpirun is installed; install the mpirun of Open MPI"):
        find_mpirun(OPEN_MPI_4, str(tmp_path))


def test_open_mpi_starts_unbound_processes_as_root_too() -> None:
    hosts = ["n1", "n1", "n2", "n2"]
    command = build_mpirun_command(OPEN_MPI_4, "mpirun", hosts, RELAY, is_root=True)
    assert " ".join(command) == (
        "mpirun --allow-run-as-root --np 4 --host n1:2,n2:2 --map-by slot --oversubscribe --bind-to none "
        "python -c code name"
    )
    assert "--allow-run-as-root" not in build_mpirun_command(OPEN_MPI_4, "mpirun", hosts, RELAY, is_root=False)


def test_mpich_lets_processes_connect_to_a_port() -> None:
    command = build_mpirun_command(MPICH_4, "mpirun", ["localhost"] * 2, RELAY, is_root=True)
    assert " ".join(command) == (
        "mpirun -n 2 -hosts localhost:2 -launcher fork -pmi-port -bind-to none python -c code name"
    )
    assert "fork" not in build_mpirun_command(MPICH_4, "mpirun", ["n1", "n2"], RELAY, is_root=True)


def test_the_launcher_of_the_run_does_not_confuse_mpirun() -> None:
    inside = {"PATH": "/bin", "OMPI_COMM_WORLD_RANK": "0", "PMIX_RANK": "0", "OMPI_MCA_ess": "x", "SLURM_JOB_ID": "7"}
    assert build_mpirun_environment(inside, is_one_machine=True) == {"PATH": "/bin"}
    shell = {"OMPI_MCA_plm_rsh_agent": "/own/ssh"}
    assert build_mpirun_environment({**inside, **shell}, is_one_machine=True) == {"PATH": "/bin", **shell}
    several = build_mpirun_environment(inside, is_one_machine=False)
    assert several == {"PATH": "/bin", "SLURM_JOB_ID": "7", "SLURM_OVERLAP": "1"}


def test_settings_of_the_user_reach_mpirun() -> None:
    own = {"PATH": "/bin", "OMPI_MCA_btl": "self,vader"}
    assert build_mpirun_environment(own, is_one_machine=True) == own
