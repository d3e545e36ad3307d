"""`corewise launch --nodes`: choose the launcher, find the hosts, and run one launch on each node."""

import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Protocol

from corewise.cli.launching.node_process import format_node_of
from corewise.cli.launching.settings import LaunchRequest
from corewise.cluster import ClusterError
from corewise.cluster.hostlist import MAX_HOSTS, expand_hostlist
from corewise.cluster.resolver import check_host
from corewise.errors import UserError
from corewise.launch.launchers.contract import LauncherCommand, NodeStart
from corewise.launch.launchers.registry import BUILDERS, get_builder, identify_mpirun
from corewise.launch.supervision.front_process import print_message
from corewise.launch.worker_commands import format_shell_line

# Ports for the rendezvous lie below the range that Linux gives to outgoing connections.
PORTS = range(10000, 30000)
# Variables that a process needs to find Corewise and its libraries on another host.
EXPORTED = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "XDG_CACHE_HOME")
DIED_OF_SIGNAL = 128
# How long Slurm's controller may take to name a node's address, in seconds.
SCONTROL_LIMIT_S = 20


class NodeChoice(Protocol):
    """The nodes and the launcher that a user asked for."""

    @property
    def num_nodes(self) -> int | None: ...
    @property
    def launcher(self) -> str: ...
    @property
    def hostfile(self) -> Path | None: ...


def start_on_nodes(request: LaunchRequest) -> int:
    """Run the command on all nodes and return the exit code of the launch."""
    hosts = find_hosts(request, os.environ)
    launcher, program = choose_launcher(request, os.environ)
    address = find_address(hosts[0], uses_slurm=launcher == "srun")
    if launcher != "srun":
        # mpirun itself names an unknown host late or shortened; Slurm knows its own.
        for host in set(hosts[1:]):
            find_address(host, uses_slurm=False)
    port = request.master_port or random.SystemRandom().choice(PORTS)
    node_command = (sys.executable, "-P", "-m", "corewise", *build_node_arguments(request, address, hosts, port))
    built = get_builder(launcher)(
        NodeStart(
            hosts=hosts,
            command=node_command,
            address=address,
            # The ranks use the port itself, so torchrun's agents meet one above.
            port=port + 1,
            exported=tuple(name for name in EXPORTED if os.environ.get(name)),
            is_root=os.geteuid() == 0,
            program=program,
        )
    )
    if launcher == "local":
        built = LauncherCommand(built.argv, {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"})
    if request.dry_run:
        sys.stdout.buffer.write(os.fsencode(f"{format_shell_line(list(built.argv), dict(built.env), {})}\n"))
        return 0
    shared = [host for host, count in Counter(hosts).items() if count > 1]
    notes = [f"{host} stands for {hosts.count(host)} nodes: each gets a part of its cores" for host in shared]
    for note in () if request.quiet else (*built.notes, *notes):
        print_message(note)
    return _run_launcher(built)


def build_node_arguments(request: LaunchRequest, address: str, hosts: tuple[str, ...], port: int) -> list[str]:
    """Build the arguments of `corewise launch` on each node: the options of the user, and the node's launch."""
    arguments = ["launch", "--node-of", format_node_of(address, hosts), "--master-port", str(port)]
    for name, value in request.params.items():
        option = "--policy" if name == "placement" else f"--{name.replace('_', '-')}"
        arguments += [option] if value is True else [] if value is False else [option, str(value)]
    for name, value in request.environment.items():
        arguments += ["--env", f"{name}={value}"]
    for option, path in (("--config", request.config), ("--log-dir", request.log_dir), ("--json", request.json)):
        arguments += [option, str(path.absolute())] if path is not None else []
    switches = {
        "--adapt": request.adapt,
        "--trust-environment": request.trust_environment,
        "--keep-env": request.keep_env,
        "--no-prefix": not request.prefix,
        "--verify": request.verify,
        "--quiet": request.quiet,
        "--replicas": request.rendezvous is False,
        "--rendezvous": request.rendezvous is True,
    }
    arguments += [option for option, is_on in switches.items() if is_on]
    return [*arguments, "--grace", f"{request.grace_s:g}s", "--", *request.command]


def find_hosts(request: NodeChoice, env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the hosts of the nodes, from the host file or the Slurm job; raise a UserError if there are too few."""
    wanted = request.num_nodes
    if wanted is not None and wanted < 1:
        raise UserError(f"--nodes {wanted}: at least 1 node is needed")
    if request.hostfile is not None:
        hosts, where = read_hostfile(request.hostfile), str(request.hostfile)
    elif request.launcher == "local":
        hosts, where = (socket.gethostname(),), "the launcher `local`"
    elif env.get("SLURM_JOB_NODELIST"):
        try:
            hosts = tuple(check_host(host) for host in expand_hostlist(env["SLURM_JOB_NODELIST"]))
        except ValueError as problem:
            raise UserError(f"SLURM_JOB_NODELIST cannot be read: {problem}") from None
        where = f"Slurm job {env.get('SLURM_JOB_ID', '')}"
    else:
        raise UserError(
            f"--nodes {wanted or ''}: there is no Slurm job and no host file; run inside a job "
            f"(salloc --nodes={wanted or 2}) or name the hosts with --hostfile FILE"
        )
    if wanted is not None and wanted > len(hosts):
        remedy = "add hosts to it" if request.hostfile is not None else "ask for more nodes"
        raise UserError(f"--nodes {wanted}: {where} has {len(hosts)}; {remedy}, or pass --nodes {len(hosts)}")
    return hosts[:wanted]


def read_hostfile(path: Path) -> tuple[str, ...]:
    """Read the hosts of a file with lines like `n1`, `n1 slots=2` (Open MPI) or `n1:2` (MPICH)."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as problem:
        raise UserError(f"--hostfile {path}: {getattr(problem, 'strerror', None) or problem}") from None
    hosts: list[str] = []
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        match = re.fullmatch(r"(\S+?)(?:\s+slots=([1-9][0-9]{0,5})|:([1-9][0-9]{0,5}))?", text)
        try:
            if match is None:
                raise ClusterError(f"not a host: {text!r}")
            hosts += [check_host(match[1])] * int(match[2] or match[3] or 1)
        except ClusterError as problem:
            raise UserError(f"{path}:{number}: {problem}; write one host a line, with slots=N if needed") from None
        if len(hosts) > MAX_HOSTS:
            raise UserError(f"{path}:{number}: more than {MAX_HOSTS} hosts")
    if not hosts:
        raise UserError(f"--hostfile {path}: it names no host")
    return tuple(hosts)


def choose_launcher(request: NodeChoice, env: Mapping[str, str]) -> tuple[str, str]:
    """Return the name and the program of the launcher; raise a UserError when it is not installed."""
    name = request.launcher or ("mpirun" if request.hostfile is not None else "srun")
    if name == "local":
        return name, ""
    if name != "mpirun":
        get_builder(name)
    if name == "srun" and not env.get("SLURM_JOB_ID"):
        raise UserError("--launcher srun: there is no Slurm job; run inside one (salloc), or use --launcher mpirun")
    # Debian installs both kinds of mpirun, each with its own suffix.
    candidates = {"openmpi": ("mpirun.openmpi", "mpirun"), "mpich": ("mpirun.mpich", "mpirun"), "mpirun": ("mpirun",)}
    for candidate in candidates.get(name, (name,)):
        program = shutil.which(candidate, path=env.get("PATH"))
        if program is not None:
            break
    else:
        # torchrun stands next to the interpreter of its environment.
        beside = Path(sys.executable).parent / name
        if not beside.exists():
            raise UserError(f"--launcher {name}: it is not installed here; known launchers: {', '.join(BUILDERS)}")
        program = str(beside)
    if name == "mpirun":
        done = subprocess.run([program, "--version"], capture_output=True, text=True, errors="replace")
        name = identify_mpirun(done.stdout + done.stderr)
    return name, program


def find_address(host: str, *, uses_slurm: bool) -> str:
    """Return an address of the first host that other nodes reach; raise a UserError when nothing resolves it."""
    try:
        socket.getaddrinfo(host, None)
        return host
    except OSError as problem:
        reason = problem.strerror or str(problem)
    if uses_slurm:
        # The name of a node in Slurm need not be a host name; the controller knows its address.
        try:
            done = subprocess.run(
                ["scontrol", "show", "node", "-o", host], capture_output=True, text=True, timeout=SCONTROL_LIMIT_S
            )
        except (OSError, subprocess.TimeoutExpired):
            raise UserError(f"host {host!r} does not resolve ({reason}), and scontrol does not answer") from None
        match = re.search(r"\bNodeAddr=(\S+)", done.stdout)
        if match is not None and match[1] != host:
            return match[1]
    raise UserError(f"host {host!r} does not resolve: {reason}; check its spelling, or use its IP address")


def _run_launcher(built: LauncherCommand) -> int:
    """Run the launcher until it ends; signals to end are passed on to it."""
    try:
        process = subprocess.Popen(built.argv, env={**os.environ, **built.env}, start_new_session=True)
    except OSError as problem:
        raise UserError(f"{built.argv[0]} cannot be started: {problem.strerror}") from None

    def forward(number: int, _: FrameType | None) -> None:
        process.send_signal(number)

    previous = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        code = process.wait()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    return DIED_OF_SIGNAL - code if code < 0 else code
