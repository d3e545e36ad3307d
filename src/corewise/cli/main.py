"""`corewise`: the verbs in the order a person works, and the one door by which mistakes leave."""

import sys
from importlib.util import find_spec
from typing import Annotated

import typer

from corewise import __version__
from corewise.cli.bundle import bundle
from corewise.cli.compare import compare
from corewise.cli.doctor import doctor
from corewise.cli.exit_codes import INTERRUPTED, USER_MISTAKE
from corewise.cli.export import export
from corewise.cli.launch_verb import WHOLE_LINE, launch
from corewise.cli.list import list_
from corewise.cli.pipes import Verb, Verbs
from corewise.cli.plan import plan
from corewise.cli.primitives import primitives
from corewise.cli.report import report
from corewise.cli.run import run
from corewise.cli.show import show
from corewise.cli.status import status
from corewise.cli.tune import TuneVerb, tune
from corewise.spec.errors import UserError

# What typer draws its help with; a worker-only install leaves them out, and a node may have some of them.
_DRAWS_HELP = ("rich", "pygments", "markdown_it", "mdurl")

app = typer.Typer(
    cls=Verbs,
    help="Measure, explain and improve how deep-learning and HPC workloads run on this machine.",
    epilog="Start with `corewise doctor`, then `corewise run quick` and `corewise show`.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="rich" if all(map(find_spec, _DRAWS_HELP)) else None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(cls=Verb)(doctor)
app.command("list", cls=Verb)(list_)
app.command(cls=Verb)(plan)
app.command(cls=Verb)(run)
app.command(cls=Verb)(status)
app.command(cls=Verb)(show)
app.command(cls=Verb)(primitives)
app.command(cls=TuneVerb)(tune)
app.command(cls=Verb, context_settings=WHOLE_LINE, add_help_option=False)(launch)
app.command(cls=Verb)(compare)
app.command(cls=Verb)(report)
app.command(cls=Verb)(export)
app.command(cls=Verb)(bundle)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"corewise {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; user mistakes end with code 2 and one clear text."""
    try:
        app()
    except UserError as problem:
        print(f"corewise: {problem}", file=sys.stderr)
        sys.exit(USER_MISTAKE)
    except ModuleNotFoundError as problem:
        from corewise.bundle.contents import missing_package

        told = missing_package(problem)
        if told is None:
            raise
        print(f"corewise: {told}", file=sys.stderr)
        sys.exit(USER_MISTAKE)
    except KeyboardInterrupt:
        print("corewise: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
