"""The arguments of `corewise launch`: where the command begins, and the messages on wrong arguments."""

import inspect
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.launch_parsing import parse_launch

from corewise.cli.launch import launch
from corewise.cli.launching.start import PLACEMENT_REMEDIES
from corewise.errors import UserError
from corewise.machine.machine_model import Cpu, Topology
from corewise.machine.placement import PlacementError, PlacementProblem, place_ranks

UsageError = typer.BadParameter.__base__
assert UsageError is not None


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("--threads 2 -- python t.py --threads 9", "python t.py --threads 9"),
        ("--threads 2 python t.py --threads 9 -h", "python t.py --threads 9 -h"),
        ("--verify python -c x -- y", "python -c x -- y"),
        ("-- --odd", "--odd"),
        ("--verify -- env -- x", "env -- x"),
        ("python", "python"),
    ],
)
def test_the_command_begins_after_the_options(line: str, command: str) -> None:
    assert parse_launch(line.split()).command == tuple(command.split())


def test_options_become_parameters_of_trials() -> None:
    line = """-p 2 -t 3 --policy numa --memory-policy local --smt --reserved-cores 1 --wait-policy passive
        --env A=b=c --env D= --grace 500ms --no-prefix --log-dir logs x"""
    request = parse_launch(line.split())
    assert request.params == {
        "processes": 2,
        "threads": 3,
        "placement": "numa",
        "memory_policy": "local",
        "smt": True,
        "reserved_cores": 1,
        "wait_policy": "passive",
    }
    assert request.environment == {"A": "b=c", "D": ""}
    assert (request.grace_s, request.prefix, request.log_dir) == (0.5, False, Path("logs"))


def test_options_that_are_not_given_set_nothing() -> None:
    request = parse_launch(["x"])
    assert request.params == {}
    assert request.rendezvous is None
    assert parse_launch(["--replicas", "x"]).rendezvous is False
    assert parse_launch(["--rendezvous", "x"]).rendezvous is True


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "no command to launch; put it last"),
        ("--threads 2 --", "no command to launch"),
        ("--proceses 2 x", "No such option: --proceses"),
        ("--policy nuna x", "--policy: unknown value 'nuna'; did you mean 'numa'?"),
        ("--allocator temalloc x", "did you mean 'tcmalloc'?"),
        ("--threads two x", "'--threads'"),
        ("--threads", "--threads"),
        ("--env A x", "write NAME=VALUE, not 'A'"),
        ("--grace soon x", "--grace soon: not a duration; write"),
    ],
)
def test_wrong_arguments_are_named(line: str, message: str) -> None:
    with pytest.raises((UserError, UsageError)) as caught:
        parse_launch(line.split())
    problem = caught.value
    assert message in (str(problem) if isinstance(problem, UserError) else problem.format_message())


def test_the_examples_of_the_help_can_be_parsed() -> None:
    text = inspect.cleandoc(launch.__doc__ or "")
    examples = [line.split()[2:] for line in text.splitlines() if line.startswith("  corewise launch")]
    assert len(examples) >= 4
    for arguments in examples:
        assert parse_launch(arguments).command


EIGHT = Topology(tuple(Cpu(n, n, 0, n // 4) for n in range(8)), gpu_nodes=(1,))


@pytest.mark.parametrize(
    ("topology", "wanted", "remedy"),
    [
        (EIGHT, {"num_threads": 5}, "Use fewer processes or threads, or --oversubscribe"),
        (EIGHT, {"num_processes": 1, "num_threads": 5, "policy": "numa"}, "--policy compact, or --over"),
        (EIGHT, {"num_threads": 3, "policy": "gpu"}, "processes or threads, or --policy compact."),
        (Topology(EIGHT.cpus), {"policy": "gpu"}, "Choose another --policy"),
        (EIGHT, {"num_reserved_cores": 8}, "smaller number to --reserved-cores"),
        (EIGHT, {"num_processes": 0}, "--help"),
    ],
    ids=["allocation", "node", "node of the GPU", "no GPU", "reserved", "no process"],
)
def test_the_remedy_fits_the_problem(topology: Topology, wanted: dict[str, Any], remedy: str) -> None:
    with pytest.raises(PlacementError) as caught:
        place_ranks(topology, range(8), **{"num_processes": 2, "num_threads": 1, **wanted})
    assert remedy in PLACEMENT_REMEDIES[caught.value.problem]


def test_oversubscribing_is_suggested_only_where_it_helps() -> None:
    for lack, remedy in PLACEMENT_REMEDIES.items():
        assert ("--oversubscribe" in remedy) is (lack in (PlacementProblem.ALLOCATION, PlacementProblem.NODE))
