"""`corewise export`: the records for other tools."""

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer


def export(
    store: Annotated[Path, typer.Option("--store", metavar="DIR", help="Where records are kept.")] = Path(
        "corewise-store"
    ),
    fmt: Annotated[
        str | None,
        typer.Option("--format", metavar="csv|json|parquet", help="By default what FILE ends in, else json."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="By default standard output.")
    ] = None,
) -> None:
    """Write all records as CSV, JSON or Parquet.

    CSV and Parquet have one row a trial and columns such as params.threads and metrics.samples_per_s.
    In CSV, text that a spreadsheet would take for a formula has a ' before it.

    Examples:

      corewise export --format json | jq '.[] | select(.status == "ok") | .metrics.samples_per_s'

      corewise export -o results.parquet
    """
    from corewise.cli.terminal import busy
    from corewise.store.export import FORMATS, export_records
    from corewise.store.reader import told_damage
    from corewise.store.store import Store

    out = None if output is None or str(output) == "-" else output
    if fmt is None:
        suffix = out.suffix.removeprefix(".").lower() if out else ""
        fmt = suffix if suffix in FORMATS else "json"
    opened = Store.open(store, create=False)
    with busy(f"writing {out}") if out is not None else nullcontext():
        result = export_records(opened, fmt, out)
    if out is not None:
        print(f"{result.num_records} records written to {out}", file=sys.stderr)
    for damage in told_damage(result.damage):
        print(f"corewise: left out: {damage}", file=sys.stderr)
