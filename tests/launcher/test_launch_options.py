"""The words of `corewise launch`: where the command begins, and what is said of words that make no sense."""

from pathlib import Path
from typing import Any

import pytest

from corewise.cli.launch import WAYS_OUT
from corewise.cli.launch_options import make_parser, read_words
from corewise.machine.model import Cpu, Topology
from corewise.machine.placement import Lack, PlacementError, place
from corewise.spec.errors import UserError


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("--threads 2 -- python t.py --threads 9", "python t.py --threads 9"),
        ("--threads 2 python t.py --threads 9 -h", "python t.py --threads 9 -h"),
        ("--verify python -c x -- y", "python -c x -- y"),
        ("-- --odd", "--odd"),
        ("--verify -- env -- x", "env -- x"),
        ("python", "python"),
    ],
)
def test_the_command_begins_after_the_options(words: str, command: str) -> None:
    assert read_words(words.split()).command == tuple(command.split())


def test_what_is_given_goes_by_the_names_of_trials() -> None:
    words = """-p 2 -t 3 --policy numa --memory-policy local --smt --reserved-cores 1 --wait-policy passive
        --env A=b=c --env D= --grace 500ms --no-prefix --log-dir logs x"""
    request = read_words(words.split())
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


def test_nothing_given_is_nothing_set() -> None:
    request = read_words(["x"])
    assert request.params == {}
    assert request.rendezvous is None
    assert read_words(["--replicas", "x"]).rendezvous is False
    assert read_words(["--rendezvous", "x"]).rendezvous is True


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("", "no command to launch; put it last"),
        ("--threads 2 --", "no command to launch"),
        ("--proceses 2 x", "unknown option --proceses; did you mean '--processes'?"),
        ("--policy nuna x", "unknown word 'nuna'; did you mean 'numa'?"),
        ("--allocator temalloc x", "did you mean 'tcmalloc'?"),
        ("--threads two x", "--threads: invalid int value: 'two'"),
        ("--threads", "--threads: expected one argument"),
        ("--env A x", "write NAME=VALUE, not 'A'"),
        ("--grace soon x", "'soon' is no duration; write 10s"),
    ],
)
def test_words_that_make_no_sense_are_told(words: str, what: str) -> None:
    with pytest.raises(UserError) as caught:
        read_words(words.split())
    assert what in str(caught.value)


def test_the_help_has_examples_that_can_be_read() -> None:
    text = make_parser().format_help()
    examples = [line.split()[2:] for line in text.splitlines() if line.startswith("  corewise launch")]
    assert len(examples) >= 4
    for words in examples:
        assert read_words(words).command


EIGHT = Topology(tuple(Cpu(n, n, 0, n // 4) for n in range(8)), gpu_nodes=(1,))


@pytest.mark.parametrize(
    ("topology", "wanted", "told"),
    [
        (EIGHT, {"num_threads": 5}, "Use fewer processes or threads, or --oversubscribe"),
        (EIGHT, {"num_processes": 1, "num_threads": 5, "policy": "numa"}, "--policy compact, or --over"),
        (EIGHT, {"num_threads": 3, "policy": "gpu"}, "processes or threads, or --policy compact."),
        (Topology(EIGHT.cpus), {"policy": "gpu"}, "Choose another --policy"),
        (EIGHT, {"num_reserved_cores": 8}, "--reserved-cores a smaller number"),
        (EIGHT, {"num_processes": 0}, "--help"),
    ],
    ids=["allocation", "node", "beside the GPU", "no GPU", "reserved", "no process"],
)
def test_the_way_out_fits_the_problem(topology: Topology, wanted: dict[str, Any], told: str) -> None:
    with pytest.raises(PlacementError) as caught:
        place(topology, range(8), **{"num_processes": 2, "num_threads": 1, **wanted})
    assert told in WAYS_OUT[caught.value.lack]


def test_what_oversubscribing_cannot_mend_is_not_told_to_be_mended_by_it() -> None:
    for lack, way_out in WAYS_OUT.items():
        assert ("--oversubscribe" in way_out) is (lack in (Lack.ALLOCATION, Lack.NODE))
