"""What an agent says about its node, and the checks that the nodes of a run are alike. Pure functions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from corewise.errors import UserError
from corewise.machine.allocation import restrict_allocation
from corewise.run.machine_view import Host

_HOST = TypeAdapter(Host)


@dataclass(frozen=True)
class Greeting:
    """A node as its agent describes it.

    Attributes:
        boot_id: The boot of the kernel; two agents with the same one run on the same machine.
        address: The address of this node from which the run was reached.
        worker: The name of the worker archive, which contains a hash of the measured code.
        versions: Versions that must be the same on all nodes, by name.
    """

    node_rank: int
    host: Host
    boot_id: str
    address: str
    worker: str
    versions: Mapping[str, str]

    @property
    def name(self) -> str:
        return f"node {self.node_rank} ({self.host.facts.hostname})"

    def to_json(self) -> dict[str, Any]:
        """Convert the greeting to plain JSON values."""
        plain = {name: getattr(self, name) for name in ("node_rank", "boot_id", "address", "worker")}
        return {**plain, "versions": dict(self.versions), "host": _HOST.dump_python(self.host, mode="json")}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Greeting":
        """Build the greeting from JSON values; raise a UserError if an agent of another version sent it."""
        try:
            host = _HOST.validate_python(data["host"])
            texts = {name: str(data[name]) for name in ("boot_id", "address", "worker")}
            versions = {str(name): str(value) for name, value in data["versions"].items()}
            return cls(node_rank=int(data["node_rank"]), host=host, versions=versions, **texts)
        except (ValidationError, KeyError, ValueError, AttributeError) as problem:
            raise UserError(f"the agent of a node runs another version of Corewise: {problem}") from None


def require_same_software(greetings: Sequence[Greeting]) -> None:
    """Raise a UserError that names the first node whose software differs from that of node 0."""
    first = greetings[0]
    for other in greetings[1:]:
        names = sorted({*first.versions, *other.versions})
        differences = [
            f"{name} {other.versions.get(name, 'missing')} instead of {first.versions.get(name, 'missing')}"
            for name in names
            if other.versions.get(name) != first.versions.get(name)
        ]
        if not differences and other.worker != first.worker:
            differences = ["other files of Corewise"]
        if differences:
            raise UserError(
                f"{other.name} has {', '.join(differences)} on {first.name}; "
                "all nodes must run the same software: use one installation in a shared folder, or one container"
            )


def require_same_machines(greetings: Sequence[Greeting]) -> None:
    """Raise a UserError that names the first node whose machine or allocation differs from that of node 0."""
    first = greetings[0]
    for other in greetings[1:]:
        if other.host.class_hash != first.host.class_hash:
            raise UserError(
                f"{other.name} is another type of machine ({other.host.facts.cpu_model}) than "
                f"{first.name} ({first.host.facts.cpu_model}); choose equal nodes, for example with --constraint"
            )
        if other.host.compute_allocation_shape() != first.host.compute_allocation_shape():
            raise UserError(
                f"{other.name} grants {other.host.allocation.num_cores} cores, {first.name} "
                f"{first.host.allocation.num_cores}; all nodes of a run need the same allocation"
            )


def divide_shared_machines(greetings: Sequence[Greeting]) -> list[Greeting]:
    """Give nodes that are the same machine disjoint cores; other nodes keep their allocation.

    Raises:
        UserError: a machine has fewer cores than nodes.
    """
    divided = []
    for each in greetings:
        sharing = [other for other in greetings if other.boot_id == each.boot_id and _overlap(other, each)]
        divided.append(_restrict(each, sharing.index(each), len(sharing)) if len(sharing) > 1 else each)
    return divided


def _overlap(one: Greeting, other: Greeting) -> bool:
    return not set(one.host.allocation.cpus).isdisjoint(other.host.allocation.cpus)


def _restrict(greeting: Greeting, index: int, num_shares: int) -> Greeting:
    host = greeting.host
    try:
        restricted = restrict_allocation(host.topology, host.allocation, index, num_shares)
    except ValueError as problem:
        raise UserError(f"{num_shares} nodes of this run are the same machine: {problem}") from None
    return replace(greeting, host=replace(host, allocation=restricted))
