"""The words of `corewise launch`: where the command begins, and what is said of words that make no sense."""

from pathlib import Path

import pytest

from corewise.cli.launch import way_out
from corewise.cli.launch_options import make_parser, read_words
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


@pytest.mark.parametrize(
    ("problem", "told"),
    [
        ("3 processes × 1 thread need 3 cores; the allocation has 2", "Use fewer processes or threads, or"),
        ("3 processes need 3 cores, each process within one NUMA node", "--policy compact, or --over"),
        ("placement gpu: there is no GPU, or its NUMA node is not known", "Choose another --policy"),
        ("0 processes: at least 1 needed", "--help"),
    ],
)
def test_the_way_out_fits_the_problem(problem: str, told: str) -> None:
    assert told in way_out(problem)
