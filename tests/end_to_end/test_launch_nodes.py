"""`corewise launch` on several nodes: inside a real Slurm job, with host files, and with each launcher."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.slurm_cluster import SlurmCluster, need_slurm, run_slurm

pytestmark = pytest.mark.slow

# Each rank adds its rank to a sum over all ranks, and says where it ran.
SUM = """
import json, os, torch, torch.distributed as distributed
distributed.init_process_group("gloo")
total = torch.tensor([float(distributed.get_rank() + 1)])
distributed.all_reduce(total)
distributed.destroy_process_group()
shown = {name: os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "COREWISE_HOSTS")}
inherited = [name for name in os.environ if name.startswith(("OMPI_", "PMI_", "PMIX_"))]
result = {**shown, "total": total.item(), "cpus": sorted(os.sched_getaffinity(0)), "inherited": inherited}
os.write(1, (json.dumps(result) + chr(10)).encode())
"""
FAILS_ON_THE_SECOND_NODE = "import os, sys, time; sys.exit(3) if os.environ['RANK'] == '1' else time.sleep(120)"
TWO_ON_THIS_HOST = "localhost slots=2\n"


@pytest.fixture
def slurm(need: Callable[[bool, str], None]) -> Iterator[SlurmCluster]:
    need_slurm(need)
    with run_slurm(cpus_per_node=2) as cluster:
        cluster.env["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
        yield cluster


@pytest.fixture(autouse=True)
def _two_cores(need: Callable[[bool, str], None]) -> None:
    need(len(os.sched_getaffinity(0)) >= 2, "two CPUs, one for each node")


def build_launch(folder: Path, *options: str, hosts: str = TWO_ON_THIS_HOST) -> list[str]:
    (folder / "hosts").write_text(hosts)
    hostfile = [] if "srun" in options else ["--hostfile", str(folder / "hosts")]
    return [sys.executable, "-P", "-m", "corewise", "launch", "--nodes", "2", *hostfile, *options, "--"]


def run_command(command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


def require_launcher(name: str, need: Callable[[bool, str], None]) -> None:
    program = {"openmpi": "mpirun.openmpi", "mpich": "mpirun.mpich"}[name]
    need(shutil.which(program) is not None, name)


def check_sum(output: str) -> list[dict[str, object]]:
    ranks = sorted((json.loads(line) for line in output.splitlines() if line.startswith("{")), key=lambda r: r["RANK"])
    assert [rank["RANK"] for rank in ranks] == ["0", "1"]
    assert [rank["GROUP_RANK"] for rank in ranks] == ["0", "1"]
    assert all(rank["total"] == 3.0 for rank in ranks)
    assert all(rank["inherited"] == [] for rank in ranks)
    return ranks


@pytest.mark.torch
@pytest.mark.parametrize("launcher", ["openmpi", "mpich"])
def test_ranks_of_a_host_file_meet_on_disjoint_cores_which_verify_confirms(
    launcher: str, tmp_path: Path, need: Callable[[bool, str], None]
) -> None:
    require_launcher(launcher, need)
    files = ("--json", str(tmp_path / "out.json"), "--log-dir", str(tmp_path / "logs"))
    command = build_launch(tmp_path, "--launcher", launcher, "--verify", *files)
    done = run_command([*command, sys.executable, "-c", SUM])
    assert done.returncode == 0, done.stderr
    first, second = check_sum(re.sub(r"(?m)^\[\d\] ", "", done.stdout))
    assert not set(first["cpus"]) & set(second["cpus"])  # type: ignore[call-overload]
    assert done.stderr.count("every thread stayed within its rank's CPUs") == 2
    assert "localhost stands for 2 nodes" in done.stderr
    for node in range(2):
        outcome = json.loads((tmp_path / f"out-node-{node}.json").read_text())
        assert outcome["ranks"][0]["cpus"] == (first, second)[node]["cpus"]
        assert (tmp_path / "logs" / f"node-{node}" / f"rank-{node}.log").exists()


@pytest.mark.torch
def test_ranks_meet_inside_a_slurm_job(slurm: SlurmCluster, tmp_path: Path) -> None:
    command = build_launch(tmp_path, "--launcher", "srun")
    done = slurm.run(["salloc", "-N2", "--exclusive", *command, sys.executable, "-c", SUM], timeout_s=240)
    assert done.returncode == 0, done.stderr
    first, _ = check_sum(done.stdout)
    assert first["COREWISE_HOSTS"] == "cw1,cw2"


@pytest.mark.torch
def test_torchrun_is_typed_on_each_host(tmp_path: Path, need: Callable[[bool, str], None]) -> None:
    beside = Path(sys.executable).parent / "torchrun"
    need(shutil.which("torchrun") is not None or beside.exists(), "torchrun")
    command = build_launch(tmp_path, "--launcher", "torchrun", "--master-port", "23457", hosts="localhost\n127.0.0.1\n")
    shown = run_command([*command[:-1], "--dry-run", "--", "true"]).stdout
    assert "--rdzv-endpoint=localhost:23458" in shown
    processes = [
        subprocess.Popen(
            [*command, sys.executable, "-c", SUM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=240) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    check_sum("".join(out for out, _ in outputs))


@pytest.mark.parametrize("launcher", ["openmpi", "mpich", "srun"])
def test_a_failure_on_one_node_ends_all_with_its_exit_code(
    launcher: str, tmp_path: Path, need: Callable[[bool, str], None], request: pytest.FixtureRequest
) -> None:
    command = [*build_launch(tmp_path, "--launcher", launcher), sys.executable, "-c", FAILS_ON_THE_SECOND_NODE]
    if launcher == "srun":
        done = request.getfixturevalue("slurm").run(["salloc", "-N2", "--exclusive", *command], timeout_s=100)
    else:
        require_launcher(launcher, need)
        done = run_command(command)
    assert done.returncode == 3, done.stderr


def test_ctrl_c_ends_the_ranks_of_all_nodes(tmp_path: Path, need: Callable[[bool, str], None]) -> None:
    require_launcher("openmpi", need)
    mark = str(tmp_path / "started-")
    code = f"import os, time; open({mark!r} + os.environ['RANK'], 'w').write(str(os.getpid())); time.sleep(120)"
    command = [*build_launch(tmp_path, "--launcher", "openmpi"), sys.executable, "-c", code]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 100
    pids = []
    while len(pids) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
        pids = [text for path in sorted(tmp_path.glob("started-*")) if (text := path.read_text())]
    process.send_signal(signal.SIGINT)
    assert process.wait(60) != 0
    assert not [pid for pid in pids if Path("/proc", pid).exists()]


def test_a_port_that_is_taken_is_named(tmp_path: Path, need: Callable[[bool, str], None]) -> None:
    require_launcher("openmpi", need)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = run_command([*build_launch(tmp_path, "--launcher", "openmpi", "--master-port", port), "sleep", "60"])
    assert done.returncode == 2
    assert f"--master-port {port}: Address already in use; leave it out" in done.stderr


@pytest.mark.parametrize(
    ("options", "hosts", "message"),
    [
        (("--processes", "1"), "localhost\n", "has 1; add hosts to it, or pass --nodes 1"),
        ((), "localhost\nno-such-host.invalid\n", "no-such-host.invalid"),
        ((), "no-such-host.invalid\nlocalhost\n", "'no-such-host.invalid' does not resolve"),
        (("--launcher", "mpirum"), TWO_ON_THIS_HOST, "unknown launcher 'mpirum'"),
        ((), "a b c\n", "not a host: 'a b c'; write one host a line"),
    ],
)
def test_bad_nodes_are_refused_before_anything_starts(
    options: tuple[str, ...], hosts: str, message: str, tmp_path: Path
) -> None:
    done = run_command([*build_launch(tmp_path, *options, hosts=hosts), "touch", str(tmp_path / "started")])
    assert done.returncode != 0
    assert message in done.stderr
    assert not (tmp_path / "started").exists()


def test_ranks_that_do_not_fit_on_a_node_are_refused_with_the_numbers(
    tmp_path: Path, need: Callable[[bool, str], None]
) -> None:
    require_launcher("openmpi", need)
    many = str(len(os.sched_getaffinity(0)))
    done = run_command([*build_launch(tmp_path, "--launcher", "openmpi", "--processes", many), "true"])
    assert done.returncode == 2
    assert "Use fewer processes or threads" in done.stderr


def test_a_program_that_does_not_exist_is_named(tmp_path: Path, need: Callable[[bool, str], None]) -> None:
    require_launcher("openmpi", need)
    done = run_command([*build_launch(tmp_path, "--launcher", "openmpi"), "/no/such/program"])
    assert done.returncode == 127
    assert "/no/such/program: no such file" in done.stderr


@pytest.mark.parametrize("launcher", ["openmpi", "mpich"])
def test_one_node_works(launcher: str, tmp_path: Path, need: Callable[[bool, str], None]) -> None:
    require_launcher(launcher, need)
    command = build_launch(tmp_path, "--launcher", launcher, hosts="localhost\n")
    command[command.index("--nodes") + 1] = "1"
    done = run_command([*command, sys.executable, "-c", "import os; print(os.environ['WORLD_SIZE'])"])
    assert (done.returncode, done.stdout.strip()) == (0, "1"), done.stderr
