"""Messages between two nodes over MPI, gloo and shared memory, on one machine and on two hosts with a network."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from corewise.store.store import Store
from corewise.study.record import Record
from tests.network_hosts import need_network_hosts, run_two_hosts

pytestmark = pytest.mark.slow

STUDY = """
workload: communication
runtime: [torch, numpy]
axes: {collectives: [gloo, shared, mpi]}
constraints: [runtime == 'torch' or collectives == 'mpi']
fixed: {nodes: 2, processes: 1, threads: 1, args.operation: allreduce, args.size_bytes: 1048576}
protocol: {min_runs: 1, max_runs: 1, min_samples: 3, min_sample_s: 0.02, max_warmup_s: 0.1, max_repeats_disturbed: 0}
"""


@pytest.fixture(autouse=True)
def _open_mpi(need: Callable[[bool, str], None]) -> None:
    need_network_hosts(need)


def build_command(folder: Path, hostfile: Path) -> list[str]:
    study = folder / "study.yaml"
    study.write_text(STUDY)
    command = [sys.executable, "-P", "-m", "corewise", "run", str(study), "--store", str(folder / "store")]
    return [*command, "--on", "openmpi", "--hostfile", str(hostfile)]


def read_records(folder: Path) -> dict[tuple[str, str], Record]:
    records = Store.open(folder / "store", create=False).read_records().records
    return {(record.params["runtime"], record.params["collectives"]): record for record in records}


def check_records(folder: Path) -> None:
    records = read_records(folder)
    assert set(records) == {("torch", "gloo"), ("torch", "shared"), ("torch", "mpi"), ("numpy", "mpi")}
    for (_, backend), record in records.items():
        assert record.status == "ok", record.reason
        first, second = record.runs[0]["ranks"]
        assert [first["node"], second["node"]] == [0, 1]
        assert first["collectives_backend"] == second["collectives_backend"] == backend
        assert record.metrics["bus_gbyte_per_s"] > 0
        # A network carries the messages, so there is no share of the memory bandwidth.
        assert "fraction_of_ceiling" not in record.metrics


def test_two_nodes_of_one_machine_pass_messages(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost slots=2\n")
    done = subprocess.run(build_command(tmp_path, hosts), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    check_records(tmp_path)


def test_two_hosts_on_a_network_pass_messages(tmp_path: Path) -> None:
    with run_two_hosts() as hosts:
        done = hosts.run(build_command(tmp_path, hosts.hostfile))
        assert done.returncode == 0, done.stderr
    check_records(tmp_path)
    for record in read_records(tmp_path).values():
        link, bus = record.metrics["link_gbyte_per_s"], record.metrics["bus_gbyte_per_s"]
        assert record.metrics["fraction_of_link"] == pytest.approx(bus / link)


def test_hosts_that_mpirun_cannot_reach_are_named_with_its_message(tmp_path: Path) -> None:
    with run_two_hosts() as hosts:
        shell = hosts.hostfile.with_name("remote-shell")
        # The agents are started, but the second mpirun is refused.
        # The mpirun of the agents is served once, those of the trials are not.
        refuse = 'shift\ntest -e "$0.used" && { echo "no such host: $host" >&2; exit 255; }\ntouch "$0.used"\n'
        shell.write_text(shell.read_text().replace("shift\n", refuse, 1))
        done = hosts.run(build_command(tmp_path, hosts.hostfile))
        assert done.returncode == 0, done.stderr
    records = read_records(tmp_path)
    for (_, backend), record in records.items():
        assert record.status == ("skipped" if backend == "mpi" else "ok")
        if backend == "mpi":
            assert record.kind == "not-now"
            assert "no such host: 10." in record.reason
