"""The `corewise` command: all verbs, and the exit codes of user errors and interrupts."""

import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Annotated, Any

import typer

from corewise import __version__
from corewise.cli.exit_codes import INTERRUPTED, USER_MISTAKE
from corewise.cli.verb_classes import COMMAND_LAST, TuneVerb, Verb, VerbGroup
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
    "tune": "corewise.cli.tune:tune",
    "launch": "corewise.cli.launch:launch",
    "compare": "corewise.cli.compare:compare",
    "report": "corewise.cli.report:report",
    "export": "corewise.cli.export:export",
    "bundle": "corewise.cli.bundle:bundle",
}
VERB_SETTINGS: dict[str, dict[str, Any]] = {"tune": {"cls": TuneVerb}, "launch": {"context_settings": COMMAND_LAST}}


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


def main() -> None:
    """Run the command line; exit with code 2 and one message for user errors."""
    try:
        build_app(_select_verbs(sys.argv[1:]))(prog_name="corewise")
    except UserError as problem:
        print(f"corewise: {problem}", file=sys.stderr)
        sys.exit(USER_MISTAKE)
    except ModuleNotFoundError as problem:
        from corewise.bundle.contents import describe_missing_package

        message = describe_missing_package(problem)
        if message is None:
            raise
        print(f"corewise: {message}", file=sys.stderr)
        sys.exit(USER_MISTAKE)
    except KeyboardInterrupt:
        print("corewise: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
