"""A real Slurm for tests: its own munge daemon, a controller and nodes on this machine, on free loopback ports.

Each cluster has its own folder and ports, so that several can run at the same time. Every daemon is started by
its test and ended by its process id, with all processes that the jobs of the cluster left behind.
"""

import os
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

PARTS = ("slurmctld", "slurmd", "srun", "munged", "munge")
# Debian keeps the daemons outside the PATH of ordinary users.
SEARCH_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
CONTROLLER = "slurmctld"
# How long a daemon may take on a busy machine, in seconds; no test depends on the time itself.
PATIENCE_S = 90.0

CONF = """
ClusterName=corewise
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=20
CredType=cred/munge
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdSpoolDir={folder}/spool/%n
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin={task_plugin}
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
"""


@dataclass
class SlurmCluster:
    """A running cluster.

    Attributes:
        env: The environment in which srun, sbatch and squeue reach this cluster.
        nodes: The names of the nodes.
    """

    folder: Path
    env: dict[str, str]
    nodes: tuple[str, ...]
    daemons: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    @property
    def conf(self) -> Path:
        return self.folder / "slurm.conf"

    def run(
        self, command: Sequence[str], timeout_s: float = 120, cwd: Path | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command that reaches this cluster, and return its output as text."""
        return subprocess.run(command, env=self.env, cwd=cwd, capture_output=True, text=True, timeout=timeout_s)

    def start_controller(self) -> None:
        self._start(CONTROLLER, [CONTROLLER, "-D"])

    def start_node(self, node: str, hidden: Path | None = None) -> None:
        """Start the daemon of a node; in its jobs, the hidden folder is empty, as one that is not shared."""
        command = ["slurmd", "-D", "-N", node]
        if hidden is not None:
            mount = f"mount -t tmpfs none {shlex.quote(str(hidden))} && exec {shlex.join(command)}"
            command = ["unshare", "--mount", "sh", "-c", mount]
        self._start(node, command)

    def stop(self, daemon: str) -> None:
        """End a node's daemon (its name) or the controller (CONTROLLER) in an orderly manner."""
        self._end(daemon, signal.SIGTERM)

    def kill(self, daemon: str) -> None:
        """Kill a node's daemon (its name) or the controller (CONTROLLER), as `kill -9` does."""
        self._end(daemon, signal.SIGKILL)

    def kill_jobs(self) -> None:
        """Kill the processes of all jobs and their step daemons, as the loss of their nodes does."""
        daemons = {daemon.pid for daemon in self.daemons.values()}
        for pid in self.list_processes():
            with suppress(OSError):
                environment = Path(f"/proc/{pid}/environ").read_bytes()
                is_step = Path(f"/proc/{pid}/comm").read_text().startswith("slurmstepd")
                if pid not in daemons and (is_step or b"\0SLURM_JOB_ID=" in environment):
                    os.kill(pid, signal.SIGKILL)

    def wait_until_idle(self, num_nodes: int | None = None) -> None:
        """Wait until this number of nodes, by default all, is idle; AssertionError when that never happens."""
        wanted = len(self.nodes) if num_nodes is None else num_nodes
        shown = ""
        for _ in _poll():
            shown = self.run(["sinfo", "-h", "-N", "-o", "%T"]).stdout
            if shown.split().count("idle") >= wanted:
                return
        logs = "\n".join(path.read_text()[-2000:] for path in sorted(self.folder.glob("slurm*.log")))
        raise AssertionError(f"{wanted} nodes did not become idle: {shown!r}\n{logs}")

    def list_processes(self) -> list[int]:
        """List the processes that run in this cluster's environment, daemons included."""
        mark, found = f"SLURM_CONF={self.conf}".encode(), []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with suppress(OSError):
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
        return found

    def take_down(self) -> None:
        """End every daemon, and every process that a job left behind."""
        if CONTROLLER in self.daemons:
            with suppress(subprocess.TimeoutExpired):
                self.run(["scancel", "-u", "root"], timeout_s=20)
        for daemon in [*self.nodes, *self.daemons]:
            if daemon in self.daemons:
                self.kill(daemon)
        for _ in _poll():
            left = self.list_processes()
            if not left:
                return
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        raise AssertionError(f"processes of the cluster do not end: {left}")

    def _start(self, name: str, command: list[str]) -> None:
        assert name not in self.daemons, f"{name} is running"
        with (self.folder / f"{name}.output").open("ab") as out:
            self.daemons[name] = subprocess.Popen(command, env=self.env, stdout=out, stderr=out)

    def _end(self, name: str, number: int) -> None:
        daemon = self.daemons.pop(name)
        daemon.send_signal(number)
        daemon.wait(timeout=PATIENCE_S)


@contextmanager
def run_slurm(
    *,
    num_nodes: int = 2,
    cpus_per_node: int = 1,
    gpus_per_node: int = 0,
    task_plugin: str = "task/none",
    extra: str = "",
    partitions: str = "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP",
) -> Iterator[SlurmCluster]:
    """Start a cluster, yield it when its nodes are idle, and take it down.

    Args:
        gpus_per_node: GPUs that Slurm hands out; the devices behind them are no GPUs.
        extra: Further lines of slurm.conf, such as `SlurmdTimeout=10`.
    """
    # Unix sockets need a short path, and munge one that everybody may pass through.
    folder = Path(tempfile.mkdtemp(prefix="cw-slurm-", dir="/tmp"))
    folder.chmod(0o755)
    nodes = tuple(f"cw{i + 1}" for i in range(num_nodes))
    env = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    env.update({"SLURM_CONF": str(folder / "slurm.conf"), "PATH": SEARCH_PATH})
    cluster = SlurmCluster(folder, env, nodes)
    host = socket.gethostname().split(".")[0]
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        ports = _find_free_ports(num_nodes + 1)
        lines = [CONF.format(folder=folder, host=host, controller_port=ports[0], task_plugin=task_plugin), extra]
        gres = f"Gres=gpu:{gpus_per_node}" if gpus_per_node else ""
        if gpus_per_node:
            lines.append("GresTypes=gpu")
            files = [folder / f"gpu{index}" for index in range(gpus_per_node)]
            for path in files:
                # Slurm hands out character devices only; this one is /dev/null.
                os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
            (folder / "gres.conf").write_text("".join(f"Name=gpu File={path}\n" for path in files))
        lines += [
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus_per_node} "
            f"RealMemory=1000 {gres} State=UNKNOWN"
            for node, port in zip(nodes, ports[1:], strict=True)
        ]
        cluster.conf.write_text("\n".join([*lines, partitions, ""]))
        for name in ("state", "spool"):
            (folder / name).mkdir()
        stack.callback(cluster.take_down)
        _start_munge(cluster)
        cluster.start_controller()
        for node in nodes:
            cluster.start_node(node)
        cluster.wait_until_idle()
        yield cluster


def need_slurm(need: Callable[[bool, str], None]) -> None:
    """Skip the test where a Slurm cannot be started; `need` is the fixture of tests/conftest.py."""
    need(all(shutil.which(part, path=SEARCH_PATH) for part in PARTS), "Slurm and munge")
    need(os.geteuid() == 0, "root, to start slurmd")


def _start_munge(cluster: SlurmCluster) -> None:
    """Start a munge daemon with a key and a socket in the cluster's folder."""
    folder = cluster.folder
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    paths = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
    # Root's daemon in a temporary folder needs --force; the key is used by this cluster only.
    command = ["munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *paths]
    cluster._start("munged", command)
    for _ in _poll():
        if cluster.run(["munge", "-n", f"--socket={folder}/munge.socket"]).returncode == 0:
            return
    raise AssertionError((folder / "munged.output").read_text())


def _find_free_ports(count: int) -> list[int]:
    """Find ports that are free now, all different."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def _poll() -> Iterator[None]:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        yield
        time.sleep(0.2)
