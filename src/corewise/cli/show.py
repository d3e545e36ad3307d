"""`corewise show`: what the trials gave, as tables."""

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

_MAX_ROWS = 1000  # of a table in a terminal


def show(
    store: Annotated[Path, typer.Option("--store", metavar="DIR", help="Where records are kept.")] = Path(
        "corewise-store"
    ),
    study: Annotated[str | None, typer.Option("--study", metavar="NAME", help="Only this study.")] = None,
    workload: Annotated[
        str | None, typer.Option("--workload", metavar="NAME", help="Only this workload.")
    ] = None,
    status: Annotated[
        str | None, typer.Option("--status", metavar="ok|failed|skipped", help="Only trials that ended so.")
    ] = None,
    trial: Annotated[
        str | None,
        typer.Option("--trial", metavar="ID", help="One trial in full; the start of its id will do."),
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option("--sort", metavar="NAME", help="Sort by a parameter or metric, e.g. samples_per_s."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> None:
    """Show the results: a table for each workload and mode, the best row marked, failures below.

    Only the parameters that vary have a column. Rows that cannot be told from the best are marked ≈ best.

    Examples:

      corewise show

      corewise show --workload resnet50 --sort samples_per_s

      corewise show --trial 3fa9
    """
    from corewise.cli.tables import filtered, result_tables
    from corewise.cli.terminal import busy, make_console
    from corewise.store.brief import brief
    from corewise.store.row_texts import exported
    from corewise.store.store import Store

    opened = Store.open(store, create=False)
    with busy("reading"):
        result = opened.records(brief)
    chosen = filtered(result.records, study, workload, status)
    if trial is not None:
        from corewise.cli.one_trial import draw_trial, find_trial

        found = find_trial(chosen, trial)
        place = next(p for r, p in zip(result.records, result.places, strict=True) if r is found)
        (record,) = opened.at([place])
        if as_json:
            print(json.dumps(exported(record), indent=2))
        else:
            draw_trial(make_console(), record)
        return
    tables = result_tables(chosen, sort, max_rows=None if as_json else _MAX_ROWS)
    if as_json:
        print(json.dumps([table.to_json() for table in tables], indent=2))
        return
    from rich.text import Text

    from corewise.cli.drawn_tables import draw_tables

    console = make_console()
    draw_tables(console, tables, all_reasons=status is not None)
    num_unfinished = len(set(opened.work_ids()) - {record.trial_id for record in result.records})
    if num_unfinished:
        trials = "1 trial is" if num_unfinished == 1 else f"{num_unfinished} trials are"
        rest = f"{trials} begun and not finished; the same `corewise run` goes on with what is left"
        console.print(Text(rest, style="cyan"), soft_wrap=True)
    elif not chosen:
        run = f"corewise run STUDY --store {shlex.quote(str(store))}"
        console.print(Text(f"no records here yet: run a study with `{run}`"), soft_wrap=True)
    if result.damage:
        places = "1 place" if len(result.damage) == 1 else f"{len(result.damage)} places"
        see = f"corewise status --store {shlex.quote(str(store))}"
        told = Text(f"\n{places} of the store could not be read: see `{see}`", style="red")
        console.print(told, soft_wrap=True)
