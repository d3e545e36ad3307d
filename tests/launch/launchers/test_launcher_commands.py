"""The exact commands of all launchers, and how an mpirun is recognised."""

import dataclasses

import pytest

from corewise.errors import UserError
from corewise.launch.launchers.contract import NodeStart
from corewise.launch.launchers.registry import BUILDERS, get_builder, identify_mpirun

TWO = NodeStart(
    hosts=("n1", "n2"), command=("python", "-m", "x"), address="10.0.0.1", port=20001, exported=("PATH", "PYTHONPATH")
)
NUMBERS = "--nodes=2 --ntasks=2 --ntasks-per-node=1 --distribution=block"
COMMANDS = {
    "srun": f"srun {NUMBERS} --cpu-bind=none --mem-bind=none --mpi=none --overlap --kill-on-bad-exit=1 "
    "--nodelist=n1,n2 -- python -m x",
    "openmpi": "mpirun --np 2 --host n1:1,n2:1 --map-by slot --bind-to none -x PATH -x PYTHONPATH python -m x",
    "mpich": "mpirun -n 2 -hosts n1:1,n2:1 -bind-to none python -m x",
    "torchrun": "torchrun --nnodes=2 --nproc-per-node=1 --max-restarts=0 --rdzv-backend=c10d "
    "--rdzv-endpoint=10.0.0.1:20001 --rdzv-id=corewise --no-python python -m x",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_command_for_two_hosts(name: str) -> None:
    assert " ".join(get_builder(name)(TWO).argv) == COMMANDS[name]


def test_the_local_launcher_starts_the_command_itself_and_only_one_node() -> None:
    assert get_builder("local")(dataclasses.replace(TWO, hosts=("n1",))).argv == TWO.command
    with pytest.raises(UserError, match="starts one node, not 2; use srun or mpirun"):
        get_builder("local")(TWO)


def test_every_launcher_has_a_golden_command() -> None:
    assert {*COMMANDS, "local"} == set(BUILDERS)


@pytest.mark.parametrize(("name", "slots"), [("openmpi", "--host n1:2,n2:1"), ("mpich", "-hosts n1:2,n2:1")])
def test_a_host_that_is_listed_twice_gets_two_slots(name: str, slots: str) -> None:
    start = dataclasses.replace(TWO, hosts=("n1", "n1", "n2"))
    assert slots in " ".join(get_builder(name)(start).argv)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_program_that_was_found_replaces_the_name(name: str) -> None:
    assert get_builder(name)(dataclasses.replace(TWO, program="/opt/bin/it")).argv[0] == "/opt/bin/it"


def test_root_may_run_mpirun_of_open_mpi_and_reads_a_note() -> None:
    built = get_builder("openmpi")(dataclasses.replace(TWO, is_root=True))
    assert built.argv[1] == "--allow-run-as-root"
    assert "refuses to run as root" in built.notes[0]
    assert not get_builder("openmpi")(TWO).notes


@pytest.mark.parametrize(
    ("shown", "launcher"),
    [
        ("mpirun (Open MPI) 4.1.4\n", "openmpi"),
        ("HYDRA build details:\n    Version: 4.0.2\n", "mpich"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.9\n", "mpich"),
    ],
)
def test_an_mpirun_is_recognised_by_its_version(shown: str, launcher: str) -> None:
    assert identify_mpirun(shown) == launcher


@pytest.mark.parametrize("shown", ["", "mpirun of a third vendor 1.0"])
def test_an_unknown_mpirun_is_refused_with_the_remedy(shown: str) -> None:
    with pytest.raises(UserError, match="choose --launcher openmpi or mpich"):
        identify_mpirun(shown)


def test_an_unknown_launcher_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UserError, match="did you mean 'srun'"):
        get_builder("srum")
