"""`corewise launch` as one verb among the others; its words go to its own parser untouched."""

import typer

WHOLE_LINE = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}


def launch(context: typer.Context) -> None:
    """Start a command as pinned processes; `corewise launch --help` tells how."""
    from corewise.cli.launch import main

    raise typer.Exit(main(context.args))
