"""Join a rank that the warm parent forked to an MPI job: mpirun starts relays, which pass their variables on.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Dict, List, Optional

from corewise.measured.runtimes.base import Infeasible, NotNow, RankContext
from corewise.measured.runtimes.communication.local_sockets import JOIN_LIMIT_S, is_own_peer, listen_locally, name_run
from corewise.measured.runtimes.mpi import relay
from corewise.measured.runtimes.mpi.mpirun_command import (
    MpiLibrary,
    build_mpirun_command,
    build_mpirun_environment,
    find_mpirun,
)
from corewise.process_control import end_with_parent_by

LOG_FILE = "mpirun.log"
LOG_LINES = 6
# mpirun ends within this time after its relays; then it is asked to.
END_LIMIT_S = 5.0
POLL_S = 0.05


class MpirunJob:
    """The place of this rank in an MPI job. The first rank starts mpirun and waits for its end.

    Attributes:
        program: the path of mpirun; empty on other ranks.
        variables: what MPI_Init must find in the environment.
    """

    def __init__(self, context: RankContext, library: MpiLibrary) -> None:
        self.program = ""
        self._mpirun: Optional[subprocess.Popen[bytes]] = None
        self._log = Path(context.rendezvous, LOG_FILE)
        name = name_run(context, "mpi")
        with listen_locally(f"{name}-{context.rank}") as listener:
            if context.rank == 0:
                self._start_mpirun(context, library, name)
            try:
                self._relay = self._accept(listener, min(JOIN_LIMIT_S, context.time_limit_s or JOIN_LIMIT_S))
            except BaseException:
                self._end_mpirun(0.0)
                raise
        self.variables = _receive_variables(self._relay)

    def close(self) -> None:
        """Let the relay end; on the first rank also wait for mpirun."""
        self._relay.close()
        self._end_mpirun(END_LIMIT_S)

    def _start_mpirun(self, context: RankContext, library: MpiLibrary, name: str) -> None:
        self.program = find_mpirun(library)
        hosts = _list_hosts(context)
        is_one_machine = len(set(hosts)) == 1
        process = [sys.executable, "-I", "-S", "-c", inspect.getsource(relay), name]
        environment = build_mpirun_environment(os.environ, is_one_machine)
        if is_one_machine:
            # The folders of the job vanish with that of the trial.
            environment["OMPI_MCA_orte_tmpdir_base"] = context.rendezvous
        parent_pid = os.getpid()
        with open(self._log, "wb") as log:
            self._mpirun = subprocess.Popen(
                build_mpirun_command(library, self.program, hosts, process, os.geteuid() == 0),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                # A signal to the group of the rank must not end mpirun before it has cleaned up.
                start_new_session=True,
                preexec_fn=lambda: end_with_parent_by(signal.SIGTERM, parent_pid),
            )

    def _accept(self, listener: socket.socket, limit_s: float) -> socket.socket:
        """Wait for the relay of this rank; raise NotNow with the output of mpirun if there will be none."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            if select.select([listener], [], [], POLL_S)[0]:
                connection, _ = listener.accept()
                if is_own_peer(connection):
                    return connection
                connection.close()
            if self._mpirun is not None and self._mpirun.poll() is not None:
                raise NotNow(f"mpirun ended with exit code {self._mpirun.returncode}: {self._read_log()}")
        raise NotNow(f"mpirun did not start this rank within {limit_s:g} s: {self._read_log()}")

    def _end_mpirun(self, patience_s: float) -> None:
        if self._mpirun is None:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._mpirun.wait(patience_s)
            return
        self._mpirun.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._mpirun.wait(END_LIMIT_S)
            return
        self._mpirun.kill()
        self._mpirun.wait()

    def _read_log(self) -> str:
        try:
            lines = [line.strip() for line in self._log.read_text(errors="replace").splitlines()]
        except OSError:
            return "rank 0 has its output"
        # Open MPI frames its messages with rules.
        return " ".join([line for line in lines if line.strip("-=")][:LOG_LINES]) or "no output"


def _list_hosts(context: RankContext) -> List[str]:
    """List the host of each rank; nodes of one machine are that machine."""
    if len(set(context.hosts)) <= 1:
        if context.num_nodes > 1 and not context.hosts:
            raise Infeasible("collectives mpi on several nodes needs the names of their hosts, which this run lacks")
        return ["localhost"] * context.num_ranks
    return [host for host in context.hosts for _ in range(context.num_local_ranks)]


def _receive_variables(connection: socket.socket) -> Dict[str, str]:
    received = b"".join(iter(lambda: connection.recv(65536), b""))
    pairs = received.decode("utf-8", "surrogateescape").split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)
