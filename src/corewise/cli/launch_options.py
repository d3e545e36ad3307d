"""The words of `corewise launch`, read by argparse: typer would take a quarter of the time allowed."""

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from corewise.spec.axes import AXES
from corewise.spec.errors import UserError, nearest

EPILOG = """examples:
  corewise launch --processes 4 --threads 4 -- python train.py --epochs 1
  corewise launch --config tuned.yaml -- python train.py
  corewise launch --threads 8 --allocator tcmalloc --verify -- python infer.py
  corewise launch --processes 8 --threads 2 --replicas --log-dir logs -- ./serve --port 80
  corewise launch --processes 2 --dry-run -- python train.py

exit codes: that of the rank that failed first (128 + n when signal n killed it); 0 when all ended well;
1 when --verify found a thread outside its CPUs, or a log is not whole; 2 for a mistake in this command;
126, 127 as shells do. docs/launching.md has the rest."""
HELP_WIDTH = 100
_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the user asked for."""

    params: dict[str, Any]  # those given, by the names trials use
    command: tuple[str, ...]
    environment: dict[str, str]
    config: Path | None
    adapt: bool
    rendezvous: bool | None  # None: when there are several processes, or their number was given
    master_port: int
    keep_env: bool
    prefix: bool
    log_dir: Path | None
    grace_s: float
    verify: bool
    json: Path | None
    dry_run: bool
    quiet: bool


def read_words(words: Sequence[str]) -> Request:
    """The request in the words after `launch`; a UserError says what is wrong with them."""
    given, unknown = make_parser().parse_known_args(list(words))
    if unknown:
        raise UserError(f"unknown option {unknown[0]}; {nearest(unknown[0], _option_names())}")
    values = vars(given)
    command = values.pop("command")
    if command and command[0] == "--":
        command = command[1:]
    if not command:
        raise UserError(
            "no command to launch; put it last, as in `corewise launch --threads 4 -- python train.py`"
        )
    params = {name: values.pop(name) for name in [*_PARAM_NAMES] if values.get(name) is not None}
    for name in _PARAM_NAMES:
        values.pop(name, None)
    environment = dict(values.pop("environment") or ())
    return Request(params=params, command=tuple(command), environment=environment, **values)


def make_parser() -> argparse.ArgumentParser:
    """The parser, and with it the text of --help."""
    parser = _Parser(
        prog="corewise launch",
        usage="corewise launch [OPTION ...] -- COMMAND [WORD ...]",
        description="Start a command as processes pinned to their share of the allocation.",
        epilog=EPILOG,
        formatter_class=_formatter,
        allow_abbrev=False,
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    _add_where(parser.add_argument_group("where and how many"))
    _add_how(parser.add_argument_group("what the processes are given"))
    _add_settings(parser.add_argument_group("settings from a file"))
    _add_output(parser.add_argument_group("output and ending"))
    return parser


def _add_where(group: Any) -> None:
    group.add_argument("-p", "--processes", type=int, metavar="N", help="processes (ranks); default 1")
    group.add_argument(
        "-t", "--threads", type=int, metavar="N", help="threads of each; default: all cores, shared out"
    )
    _add_choice(group, "--policy", "placement", "which cores the processes get")
    group.add_argument(
        "--smt", action="store_true", default=None, help="use the second hardware thread of each core too"
    )
    _add_choice(group, "--bind", "bind", "keep a process on its cores, each OpenMP thread on one, or neither")
    _add_choice(group, "--memory-policy", "memory_policy", "which NUMA nodes memory comes from")
    group.add_argument("--reserved-cores", type=int, metavar="N", help="cores left to the system; default 0")
    group.add_argument(
        "--oversubscribe", action="store_true", default=None, help="allow more threads than cores"
    )


def _add_how(group: Any) -> None:
    _add_choice(group, "--allocator", "allocator", "retain: glibc keeps freed memory")
    _add_choice(group, "--openmp", "openmp", "OpenMP library loaded first")
    _add_choice(group, "--wait-policy", "wait_policy", "whether idle OpenMP threads spin")
    _add_choice(group, "--huge-pages", "huge_pages", "ask the kernel for huge pages")
    group.add_argument(
        "--env", dest="environment", type=_assignment, action="append", metavar="NAME=VALUE",
        help="set a variable, whatever it is now; may be repeated",
    )  # fmt: skip
    group.add_argument("--keep-env", action="store_true", help="your own OMP_..., LD_PRELOAD and so on win")
    group.add_argument(
        "--rendezvous", action="store_true", default=None,
        help="set torchrun's variables (RANK ...); the default when -p is given or more than 1",
    )  # fmt: skip
    group.add_argument(
        "--replicas", dest="rendezvous", action="store_false", help="independent processes: set none of them"
    )
    group.add_argument(
        "--master-port", type=int, default=0, metavar="PORT", help="default: a free one, kept free"
    )


def _add_settings(group: Any) -> None:
    group.add_argument(
        "--config", type=Path, metavar="FILE", help="what `corewise tune` wrote; other options go over it"
    )
    group.add_argument(
        "--adapt", action="store_true", help="the file is from another machine: plan its settings anew"
    )


def _add_output(group: Any) -> None:
    group.add_argument("--no-prefix", dest="prefix", action="store_false", help="no [RANK] before each line")
    group.add_argument(
        "--log-dir", type=_folder, metavar="DIR",
        help="keep each process's output: rank-N.log; older ones there go to older-N/",
    )  # fmt: skip
    group.add_argument(
        "--grace", dest="grace_s", type=_duration, default=10.0, metavar="TIME",
        help="between SIGTERM and SIGKILL when another has failed; default 10s",
    )  # fmt: skip
    group.add_argument(
        "--verify", action="store_true", help="watch every thread's CPUs; a table at the end, 1 if any strays"
    )
    group.add_argument("--json", type=Path, metavar="FILE", help="how it went, as one JSON object")
    group.add_argument(
        "--dry-run", action="store_true", help="print the command line of each process, start none"
    )
    group.add_argument("-q", "--quiet", action="store_true", help="say nothing but what went wrong")


_CHOICES = ("placement", "bind", "memory_policy", "allocator", "huge_pages", "openmp", "wait_policy")
_PARAM_NAMES = (
    *("processes", "threads", "smt", "reserved_cores", "oversubscribe"),
    *_CHOICES,
)


def _formatter(prog: str) -> argparse.HelpFormatter:
    """A formatter of fixed width: to ask the terminal for its own takes a library more."""
    return argparse.RawDescriptionHelpFormatter(prog, width=HELP_WIDTH)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see `corewise launch --help`")


def _add_choice(group: Any, option: str, name: str, help: str) -> None:
    words = AXES[name].choices
    shown = " | ".join(words)
    group.add_argument(option, dest=name, type=_one_of(name, words), metavar="WORD", help=f"{shown}: {help}")


def _one_of(name: str, words: Sequence[str]) -> Any:
    def read(word: str) -> str:
        if word not in words:
            raise argparse.ArgumentTypeError(f"unknown word {word!r}; {nearest(word, words)}")
        return word

    return read


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise argparse.ArgumentTypeError(f"write NAME=VALUE, not {text!r}")
    return name, value


def _folder(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("an empty name; write . for this folder")
    return Path(text)


def _duration(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)", text.strip())
    if match is None or match[2] not in _UNITS:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration; write 10s, 500ms or 2m")
    return float(match[1]) * _UNITS[match[2]]


def _option_names() -> list[str]:
    return [word for action in make_parser()._actions for word in action.option_strings]
