"""`corewise show`: show results as tables."""

import json
import shlex
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from corewise.cli.common_options import DEFAULT_STORE, JsonOption, StoreOption

if TYPE_CHECKING:
    from corewise.study.record import Record

# Rows of one table on a terminal.
_MAX_ROWS = 1000


def show(
    store: StoreOption = DEFAULT_STORE,
    study: Annotated[str | None, typer.Option("--study", metavar="NAME", help="Only this study.")] = None,
    workload: Annotated[str | None, typer.Option("--workload", metavar="NAME", help="Only this workload.")] = None,
    status: Annotated[
        str | None, typer.Option("--status", metavar="ok|failed|skipped", help="Only trials with this status.")
    ] = None,
    trial: Annotated[
        str | None,
        typer.Option("--trial", metavar="ID", help="All details of one trial; a prefix of its id is enough."),
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option("--sort", metavar="NAME", help="Sort by a parameter or metric, for example samples_per_s."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show results: one table for each workload and mode, the best row marked, failures below.

    Training over several nodes or processes also gets its scaling: efficiency, the parts of a step,
    the cause of a loss, and a prediction for more of them.

    Only parameters that vary have a column. Rows without a significant difference from the best are
    marked ≈ best. Each machine, framework version and protocol has its own best row.

    Examples:

      corewise show

      corewise show --workload resnet50 --sort samples_per_s

      corewise show --trial 3fa9
    """
    from corewise.analysis.result_tables import build_result_tables, filter_records
    from corewise.cli.render.console import make_console, show_status
    from corewise.store.brief_records import extract_brief
    from corewise.store.json_rows import build_export_row
    from corewise.store.store import Store

    opened = Store.open(store, create=False)
    with show_status("reading"):
        result = opened.read_records(extract_brief)
    chosen = filter_records(result.records, study, workload, status)
    if trial is not None:
        from corewise.cli.render.trial_details import draw_trial, find_trial

        match = find_trial(chosen, trial)
        place = next(p for r, p in zip(result.records, result.places, strict=True) if r is match)
        (record,) = opened.read_at([place])
        if as_json:
            print(json.dumps(build_export_row(record), indent=2))
        else:
            draw_trial(make_console(), record)
        return
    place_of = {record.trial_id: place for record, place in zip(result.records, result.places, strict=True)}

    def read_full_records(trial_ids: Collection[str]) -> "Sequence[Record]":
        return list(opened.read_at([place_of[trial_id] for trial_id in trial_ids if trial_id in place_of]))

    tables = build_result_tables(chosen, sort, None if as_json else _MAX_ROWS, read_full_records)
    if as_json:
        print(json.dumps([table.to_json() for table in tables], indent=2))
        return
    from rich.text import Text

    from corewise.cli.render.trial_tables import draw_tables

    console = make_console()
    draw_tables(console, tables, all_reasons=status is not None)
    num_unfinished = len(set(opened.list_work_ids()) - {record.trial_id for record in result.records})
    if num_unfinished:
        trials = "1 trial is" if num_unfinished == 1 else f"{num_unfinished} trials are"
        rest = f"{trials} unfinished; run the same `corewise run` again to resume"
        console.print(Text(rest, style="cyan"), soft_wrap=True)
    elif not chosen:
        run = f"corewise run STUDY --store {shlex.quote(str(store))}"
        console.print(Text(f"no records yet: run a study with `{run}`"), soft_wrap=True)
    if result.damage:
        places = "1 place" if len(result.damage) == 1 else f"{len(result.damage)} places"
        see = f"corewise status --store {shlex.quote(str(store))}"
        warning = Text(f"\n{places} of the store could not be read: see `{see}`", style="red")
        console.print(warning, soft_wrap=True)
