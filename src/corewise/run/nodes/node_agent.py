"""The agent of a run on one node: describes the node, and runs its part of each trial in warm parents."""

import platform
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from corewise import __version__
from corewise.errors import UserError
from corewise.launch.ranks import place_trial_ranks
from corewise.launch.rendezvous import reserve_port
from corewise.launch.worker_archive import build_worker
from corewise.machine.placement import PlacementError
from corewise.measured.sysfs import read_text
from corewise.measured.trial import NodePart, RankResult, Trial, parse_trial, to_json
from corewise.measured.worker.control_pipe import Channel
from corewise.run.machine_view import probe_interpreter, read_host
from corewise.run.nodes.node_channel import connect_to_run, read_secret
from corewise.run.nodes.node_greeting import Greeting
from corewise.run.warm_parent import ParentFailure, ParentPool

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def serve_node(node_rank: int, address: str, port: int, secret_file: Path) -> None:
    """Serve the run at this address until it closes the connection.

    Args:
        secret_file: A private file in the store. A node that cannot read it does not see the store.

    Raises:
        UserError: the store is not shared, or the run cannot be reached.
    """
    channel, own_address = connect_to_run(address, port, read_secret(secret_file))
    worker = build_worker()
    versions = {"Corewise": __version__, "Python": platform.python_version()}
    greeting = Greeting(node_rank, read_host(), read_text(BOOT_ID) or "", own_address, worker.name, versions)
    channel.send(event="hello", greeting=greeting.to_json())
    with ExitStack() as stack:
        # The folder of the secret lies in the store, so logs of the warm parents can be read from everywhere.
        logs = secret_file.parent / f"node-{node_rank}"
        logs.mkdir(exist_ok=True)
        pool = ParentPool(worker, logs)
        stack.callback(pool.kill)
        _Agent(greeting, channel, pool).serve()


class _Agent:
    """Answers the commands of the run."""

    def __init__(self, greeting: Greeting, channel: Channel, pool: ParentPool) -> None:
        self.node_rank, self.host = greeting.node_rank, greeting.host
        self.channel, self.pool = channel, pool
        self.cpus = self.host.allocation.cpus
        self._reserved = ExitStack()

    def serve(self) -> None:
        while (message := self.channel.receive()) is not None and message["cmd"] != "stop":
            answer = self._answer(message)
            if answer is not None and not self.channel.send(**answer):
                return

    def _answer(self, message: Mapping[str, Any]) -> dict[str, Any] | None:
        command = message["cmd"]
        if command == "share":
            self.cpus = tuple(message["cpus"])
            return {"event": "shared"}
        if command == "probe":
            return self._probe(message)
        if command == "reserve":
            return {"event": "reserved", "port": self._reserved.enter_context(reserve_port())}
        if command == "warm":
            self.pool.warm(self._place(parse_trial(each)) for each in message["trials"])
            return {"event": "warmed"}
        if command == "run":
            return {"event": "done", **self._run(message)}
        # A message to the ranks of a run that has ended meanwhile.
        return None

    def _probe(self, message: Mapping[str, Any]) -> dict[str, Any]:
        try:
            found = probe_interpreter(message["python"], self.pool.worker, message["environment"])
        except UserError as problem:
            return {"event": "probed", "problem": str(problem)}
        return {"event": "probed", "version": found.version, "packages": dict(found.packages)}

    def _place(self, trial: Trial) -> Trial:
        """Return the trial with the ranks of this node only, placed on its CPUs."""
        return replace(trial, ranks=place_trial_ranks(self.host.topology, self.cpus, trial.params))

    def _run(self, message: Mapping[str, Any]) -> dict[str, Any]:
        trial, part = parse_trial(message["trial"]), NodePart(**message["part"])
        try:
            local = self._place(trial)
            numbers = part.select_ranks(trial.num_ranks)
            ranks = (*trial.ranks[: numbers.start], *local.ranks, *trial.ranks[numbers.stop :])
            parent = self.pool.get(local)
            relay = self.channel if part.num_nodes > 1 else None
            whole = replace(trial, ranks=ranks)
            results = parent.run(whole, Path(message["out"]), lambda _phase: None, part, relay)
        except PlacementError as problem:
            return {"problem": str(problem), "kind": "placement"}
        except ParentFailure as problem:
            self.pool.drop(local)
            return {"problem": str(problem), "kind": problem.category}
        finally:
            self._reserved.close()
        return {"results": [to_json(self._describe_place(each, ranks[each.rank].cpus)) for each in results]}

    def _describe_place(self, result: RankResult, cpus: tuple[int, ...]) -> RankResult:
        place = {"host": self.host.facts.hostname, "node": self.node_rank, "cpus": list(cpus)}
        return replace(result, facts={**result.facts, **place})
