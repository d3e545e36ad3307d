"""The nodes of a run: starts an agent on each through a launcher, checks them, and runs trials on the first of them."""

import os
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from corewise.errors import UserError
from corewise.measured.trial import NOT_NOW, NodePart, RankResult, Trial, to_json
from corewise.measured.worker.control_pipe import Channel
from corewise.measured.worker.sampling import plan_sampling
from corewise.run.machine_view import Host, Interpreter
from corewise.run.nodes.node_channel import HandshakeError, accept_agent, open_listener, write_secret
from corewise.run.nodes.node_greeting import (
    Greeting,
    divide_shared_machines,
    require_same_machines,
    require_same_software,
)
from corewise.run.rank_results import parse_rank_result
from corewise.run.warm_parent import ANSWER_GRACE_S, START_LIMIT_S, ParentFailure

# Starting Python and Corewise from a slow network file system can take minutes.
JOIN_LIMIT_S = 180.0
POLL_S = 0.2
# An agent answers short commands at once, but may be importing a framework for another trial.
COMMAND_LIMIT_S = START_LIMIT_S
# Agents that were asked to end get this time; then the launcher gets a signal, and the same time again.
CLOSE_LIMIT_S = 5.0
LOG_LINES = 8

# Starts the launcher, with the port of the run, the file of the secret and that of the launcher's output. Returns its
# processes: one, or one per node that is this machine (torchrun).
StartLauncher = Callable[[int, Path, Path], Sequence["subprocess.Popen[bytes]"]]


@dataclass
class _Node:
    """One node; `problem` says why it cannot be used any more."""

    greeting: Greeting
    channel: Channel
    problem: str = ""

    @property
    def name(self) -> str:
        return self.greeting.name


class NodeGroup:
    """The agents of a run. It serves a run as its pool of warm parents."""

    def __init__(
        self, nodes: Sequence[_Node], launchers: Sequence["subprocess.Popen[bytes]"], files: Sequence[Path]
    ) -> None:
        self._nodes, self._launchers, self._files = list(nodes), launchers, files

    @property
    def host(self) -> Host:
        """The first node, with the part of it that a node may use; all others are like it."""
        return self._nodes[0].greeting.host

    @property
    def num_nodes(self) -> int:
        return len(self._nodes)

    @property
    def notes(self) -> list[str]:
        """What a user should know about these nodes."""
        boots = [node.greeting.boot_id for node in self._nodes]
        if len(set(boots)) == len(boots):
            return []
        return [f"{len(boots)} nodes run on {len(set(boots))} machine(s): each gets a part of the cores"]

    def require_interpreter(self, interpreter: Interpreter, environment: Mapping[str, str]) -> None:
        """Raise a UserError that names the node whose Python or packages differ from those of the plan."""
        for node in self._nodes:
            answer = self._ask(node, cmd="probe", python=list(interpreter.command), environment=dict(environment))
            if answer.get("problem"):
                raise UserError(f"{node.name}: {answer['problem']}")
            found = {"Python": str(answer["version"]), **answer["packages"]}
            wanted = {"Python": interpreter.version, **interpreter.packages}
            differences = [
                f"{name} {found.get(name, 'missing')} instead of {wanted.get(name, 'missing')}"
                for name in sorted({*found, *wanted})
                if found.get(name) != wanted.get(name)
            ]
            if differences:
                raise UserError(
                    f"{node.name} has {', '.join(differences)}; all nodes must run the same software: "
                    "use one installation in a shared folder, or one container"
                )

    def warm(self, trials: Iterable[Trial]) -> None:
        """Start the warm parents of these trials on all nodes at once; `run` reports those that fail."""
        trials = list(trials)
        asked = []
        for index, node in enumerate(self._nodes):
            needed = [to_json(trial) for trial in trials if trial.params.nodes > index]
            if needed and not node.problem and node.channel.send(cmd="warm", trials=needed):
                asked.append(node)
        for node in asked:
            self._receive(node, time.monotonic() + START_LIMIT_S)

    def get(self, trial: Trial) -> "NodeGroup":
        """Return the group, which runs the trial on its first nodes."""
        for node in self._nodes[: trial.params.nodes]:
            if node.problem:
                raise ParentFailure(NOT_NOW, node.problem)
        return self

    def drop(self, trial: Trial) -> None:
        """Do nothing: agents drop their own warm parents after a failure."""

    def run(self, trial: Trial, out_dir: Path, on_phase: Callable[[str], None]) -> list[RankResult]:
        """Run the trial once and return one result per rank."""
        nodes = self._nodes[: trial.params.nodes]
        port = 0
        if len(nodes) > 1:
            port = int(self._ask(nodes[0], cmd="reserve").get("port", 0))
        address = nodes[0].greeting.address
        hosts = _list_hosts([node.greeting for node in nodes])
        for index, node in enumerate(nodes):
            part = NodePart(index, len(nodes), address, port, hosts) if len(nodes) > 1 else NodePart()
            if not node.channel.send(cmd="run", trial=to_json(trial), out=str(out_dir), part=asdict(part)):
                self._lose(node, "the connection ended")
        answers = self._relay(trial, nodes)
        return [result for index, node in enumerate(nodes) for result in _read_answer(trial, index, node, answers)]

    def _relay(self, trial: Trial, nodes: Sequence[_Node]) -> dict[int, Mapping[str, Any]]:
        """Let all nodes sample at the same time; return the answers of those that were not lost, by index."""
        answers: dict[int, Mapping[str, Any]] = {}
        ready: dict[int, Mapping[str, Any]] = {}
        limit = time.monotonic() + START_LIMIT_S + trial.protocol.timeout_s + ANSWER_GRACE_S
        with selectors.DefaultSelector() as selector:
            for index, node in enumerate(nodes):
                if not node.problem:
                    selector.register(node.channel.read_fd, selectors.EVENT_READ, index)
            if any(node.problem for node in nodes):
                _report_failure(nodes, answers, -1)
            while selector.get_map():
                readable = selector.select(max(0.0, limit - time.monotonic()))
                if not readable:
                    for key in list(selector.get_map().values()):
                        selector.unregister(key.fd)
                        self._lose(nodes[key.data], "no answer after the time limit of the run")
                for key, _ in readable:
                    index, node = key.data, nodes[key.data]
                    for message in node.channel.receive_available():
                        if message["event"] == "ready":
                            ready[index] = message
                        elif message["event"] == "failed":
                            _report_failure(nodes, answers, index)
                        elif message["event"] == "done":
                            answers[index] = message
                            selector.unregister(key.fd)
                    if node.channel.closed and index not in answers:
                        selector.unregister(key.fd)
                        self._lose(node, "the connection ended")
                        _report_failure(nodes, answers, index)
                if len(ready) == len(nodes):
                    expected_s = [seconds for index in sorted(ready) for seconds in ready[index]["expected_s"]]
                    plan = plan_sampling(trial.protocol, expected_s, bool(ready[0]["independent"]))
                    ready.clear()
                    for node in nodes:
                        node.channel.send(cmd="sample", plan=plan.to_message())
        return answers

    def _ask(self, node: _Node, **message: Any) -> dict[str, Any]:
        """Send a command and return its answer; empty if the node is lost."""
        node.channel.send(**message)
        return self._receive(node, time.monotonic() + COMMAND_LIMIT_S)

    def _receive(self, node: _Node, limit: float) -> dict[str, Any]:
        with selectors.DefaultSelector() as selector:
            if not node.problem:
                selector.register(node.channel.read_fd, selectors.EVENT_READ)
            while not node.problem and selector.select(max(0.0, limit - time.monotonic())):
                for message in node.channel.receive_available():
                    return message
                if node.channel.closed:
                    self._lose(node, "the connection ended")
        if not node.problem:
            self._lose(node, "no answer")
        return {}

    def _lose(self, node: _Node, reason: str) -> None:
        """Mark the node as lost. Most launchers end all nodes after the first loss, so that one is named."""
        lost = [each.problem for each in self._nodes if each.problem]
        node.problem = lost[0] if lost else f"{node.name} was lost: {reason}"
        node.channel.close()

    def close(self) -> None:
        """Ask the agents to end, then end the launcher."""
        for node in self._nodes:
            if not node.problem:
                node.channel.send(cmd="stop")
                node.channel.close()
        end_launchers(self._launchers)
        for path in self._files:
            path.unlink(missing_ok=True)


def open_group(num_nodes: int, folder: Path, start_launcher: StartLauncher) -> NodeGroup:
    """Start an agent on each node and return the group of them, checked and with disjoint cores.

    Args:
        folder: A folder of the store, which all nodes see.
        start_launcher: Starts the agents; see `StartLauncher`.

    Raises:
        UserError: a node does not answer, does not see the store, or differs from the others.
    """
    folder.mkdir(parents=True, exist_ok=True)
    secret_file = folder / f"secret-{socket.gethostname()}-{os.getpid()}"
    secret_file.unlink(missing_ok=True)
    log_file = folder / f"launcher-{socket.gethostname()}-{os.getpid()}.log"
    secret = write_secret(secret_file)
    with open_listener() as listener:
        launchers = start_launcher(int(listener.getsockname()[1]), secret_file, log_file)
        nodes: list[_Node] = []
        try:
            _accept_all(nodes, num_nodes, listener, secret, launchers, log_file)
            nodes = _check_nodes(nodes, num_nodes)
        except BaseException:
            for node in nodes:
                node.channel.close()
            end_launchers(launchers)
            secret_file.unlink(missing_ok=True)
            raise
    group = NodeGroup(nodes, launchers, (secret_file, log_file))
    for node in nodes:
        group._ask(node, cmd="share", cpus=list(node.greeting.host.allocation.cpus))
    return group


def end_launchers(launchers: Sequence["subprocess.Popen[bytes]"]) -> None:
    """Wait until the launchers end; after a while end their process groups."""
    for launcher in launchers:
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number is not None:
                with suppress(ProcessLookupError):
                    os.killpg(launcher.pid, number)
            with suppress(subprocess.TimeoutExpired):
                launcher.wait(CLOSE_LIMIT_S)
                break


def _accept_all(
    nodes: list[_Node],
    num_nodes: int,
    listener: socket.socket,
    secret: bytes,
    launchers: Sequence["subprocess.Popen[bytes]"],
    log_file: Path,
) -> None:
    limit = time.monotonic() + JOIN_LIMIT_S
    listener.settimeout(POLL_S)
    while len(nodes) < num_nodes:
        with suppress(TimeoutError, HandshakeError):
            channel = accept_agent(listener, secret)
            message = channel.receive()
            if message is None:
                channel.close()
                continue
            nodes.append(_Node(Greeting.from_json(message["greeting"]), channel))
            continue
        codes = [code for launcher in launchers if (code := launcher.poll()) is not None]
        if codes:
            raise UserError(
                f"the launcher ended (exit code {codes[0]}) before all nodes answered; its output:\n"
                f"{_read_tail(log_file)}"
            )
        if time.monotonic() > limit:
            known = ", ".join(node.name for node in nodes) or "none"
            raise UserError(
                f"{len(nodes)} of {num_nodes} nodes answered within {JOIN_LIMIT_S:g} s ({known}); the output of the "
                f"launcher:\n{_read_tail(log_file)}"
            )


def _check_nodes(nodes: list[_Node], num_nodes: int) -> list[_Node]:
    """Return the nodes in their order, with disjoint cores; raise a UserError if they differ."""
    nodes = sorted(nodes, key=lambda node: node.greeting.node_rank)
    if [node.greeting.node_rank for node in nodes] != list(range(num_nodes)):
        numbers = ", ".join(str(node.greeting.node_rank) for node in nodes)
        raise UserError(f"the launcher started nodes {numbers} instead of 0 to {num_nodes - 1}; allow one per node")
    require_same_software([node.greeting for node in nodes])
    greetings = divide_shared_machines([node.greeting for node in nodes])
    require_same_machines(greetings)
    return [_Node(greeting, node.channel) for greeting, node in zip(greetings, nodes, strict=True)]


def _report_failure(nodes: Sequence[_Node], answers: Mapping[int, Any], failed: int) -> None:
    """Tell the other nodes that a rank has failed, so that theirs do not wait for it."""
    for index, node in enumerate(nodes):
        if index != failed and index not in answers and not node.problem:
            node.channel.send(cmd="peer-failed")


def _read_answer(trial: Trial, index: int, node: _Node, answers: Mapping[int, Mapping[str, Any]]) -> list[RankResult]:
    ranks = NodePart(index, trial.params.nodes).select_ranks(trial.num_ranks)
    answer = answers.get(index, {"problem": node.problem, "kind": NOT_NOW})
    if "results" in answer and len(answer["results"]) == len(ranks):
        with suppress(ValueError):
            return [parse_rank_result(data, rank) for data, rank in zip(answer["results"], ranks, strict=True)]
        return [_fail(rank, "crash", f"{node.name}: no readable result") for rank in ranks]
    kind, reason = str(answer.get("kind", "crash")), str(answer.get("problem", "no results"))
    reason = reason if reason.startswith("node ") else f"{node.name}: {reason}"
    return [_fail(rank, kind, reason) for rank in ranks]


def _fail(rank: int, kind: str, reason: str) -> RankResult:
    return RankResult(status="failed", rank=rank, kind=kind, reason=reason)


def _list_hosts(greetings: Sequence[Greeting]) -> list[str]:
    """List the hosts as launchers know them: by name, or by address where several nodes have the same name."""
    names = [greeting.host.facts.hostname for greeting in greetings]
    return names if len(set(names)) == len(names) else [greeting.address for greeting in greetings]


def _read_tail(log_file: Path) -> str:
    try:
        lines = log_file.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return "\n".join(f"  {line}" for line in lines[-LOG_LINES:]) or "  (no output)"
