"""`corewise export`: write the records for other tools."""

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from corewise.cli.common_options import DEFAULT_STORE, StoreOption


def export(
    store: StoreOption = DEFAULT_STORE,
    fmt: Annotated[
        str | None, typer.Option("--format", metavar="csv|json|parquet", help="Default: the suffix of FILE, else json.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Default: standard output.")
    ] = None,
) -> None:
    """Write all records as CSV, JSON or Parquet.

    CSV and Parquet have one row per trial and columns such as params.threads and metrics.samples_per_s.
    In CSV, a ' precedes text that a spreadsheet would run as a formula.

    Examples:

      corewise export --format json | jq '.[] | select(.status == "ok") | .metrics.samples_per_s'

      corewise export -o results.parquet
    """
    from corewise.cli.render.console import show_status
    from corewise.store.export import FORMATS, export_records
    from corewise.store.record_reader import describe_damage
    from corewise.store.store import Store

    out = None if output is None or str(output) == "-" else output
    if fmt is None:
        suffix = out.suffix.removeprefix(".").lower() if out else ""
        fmt = suffix if suffix in FORMATS else "json"
    opened = Store.open(store, create=False)
    with show_status(f"writing {out}") if out is not None else nullcontext():
        result = export_records(opened, fmt, out)
    if out is not None:
        print(f"{result.num_records} records written to {out}", file=sys.stderr)
    for damage in describe_damage(result.damage):
        print(f"corewise: skipped a damaged record: {damage}", file=sys.stderr)
