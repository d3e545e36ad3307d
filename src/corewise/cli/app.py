"""The verbs of the command line, and the exit code of user errors."""

import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Annotated, Any

import typer

from corewise import __version__
from corewise.cli.exit_codes import USER_MISTAKE
from corewise.cli.verb_classes import COMMAND_LAST, MeasuringVerb, TuneVerb, Verb, VerbGroup, end_quietly
from corewise.errors import UserError

# The verbs appear in the help in this order: the order in which people use them.
VERBS = {
    "doctor": "corewise.cli.doctor:doctor",
    "list": "corewise.cli.list:list_",
    "plan": "corewise.cli.plan:plan",
    "run": "corewise.cli.run:run",
    "status": "corewise.cli.status:status",
    "show": "corewise.cli.show:show",
    "primitives": "corewise.cli.primitives:primitives",
    "shapes": "corewise.cli.shapes:shapes",
    "tune": "corewise.cli.tune:tune",
    "launch": "corewise.cli.launch:launch",
    "compare": "corewise.cli.compare:compare",
    "report": "corewise.cli.report:report",
    "export": "corewise.cli.export:export",
    "bundle": "corewise.cli.bundle:bundle",
}
VERB_SETTINGS: dict[str, dict[str, Any]] = {
    "doctor": {"cls": MeasuringVerb},
    "run": {"cls": MeasuringVerb},
    "primitives": {"cls": MeasuringVerb},
    "tune": {"cls": TuneVerb},
    "launch": {"context_settings": COMMAND_LAST},
}


def build_app(verbs: Iterable[str] = VERBS) -> typer.Typer:
    """Build the command line with these verbs, whose modules are imported."""
    app = typer.Typer(
        cls=VerbGroup,
        help="Measure, explain and improve how deep-learning and HPC workloads run on this machine.",
        epilog="Start with `corewise doctor`, then `corewise run quick` and `corewise show`.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_parse_global_options)
    for verb in verbs:
        module, _, function = VERBS[verb].partition(":")
        app.command(verb, **{"cls": Verb, **VERB_SETTINGS.get(verb, {})})(getattr(import_module(module), function))
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"corewise {__version__}")
        raise typer.Exit


def _parse_global_options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


def _select_verbs(arguments: Sequence[str]) -> Iterable[str]:
    """Return the verb of a command line, so that a launch starts without importing the others; else all verbs."""
    return arguments[:1] if arguments and arguments[0] in VERBS else VERBS


def run_command_line(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit code; a user error gives one message and code 2."""
    try:
        return _run_app(arguments)
    except UserError as problem:
        message = str(problem)
    except ModuleNotFoundError as problem:
        from corewise.bundle.contents import describe_missing_package

        missing = describe_missing_package(problem)
        if missing is None:
            raise
        message = missing
    print(f"corewise: {message}", file=sys.stderr)
    return USER_MISTAKE


def _run_app(arguments: Sequence[str]) -> int:
    try:
        with end_quietly():
            build_app(_select_verbs(arguments))(arguments, prog_name="corewise")
    except SystemExit as end:
        return int(end.code or 0)
    return 0
