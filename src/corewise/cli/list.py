"""`corewise list`: what there is to run."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from corewise.spec.axes import Axis


def _as_json(axis: "Axis") -> dict[str, Any]:
    from corewise.cli.points import as_written

    text = getattr(axis.default, "text", None)  # an expression of other axes
    default = f"= {text}" if text else as_written(axis.default)
    return {"name": axis.name, "values": _values(axis), "default": default, "help": axis.help}


def _values(axis: "Axis") -> list[str]:
    """What may be written, as docs/study-files.md tells it."""
    if axis.kind == "count":
        return [f"whole number ≥ {axis.minimum}", *axis.words, *(["null"] if axis.takes_null else [])]
    return {"flag": ["true", "false"], "folder": ["synthetic", "a folder"]}.get(axis.kind, list(axis.choices))


def list_(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for scripts.")] = False,
) -> None:
    """List workloads, ready-made studies and the axes a study may vary.

    Examples:

      corewise list

      corewise list --json | jq '.workloads[].name'
    """
    from corewise.spec.axes import AXES
    from corewise.spec.shipped import list_studies
    from corewise.workloads.registry import list_workloads

    workloads: list[dict[str, Any]] = [asdict(w) for w in list_workloads()]
    studies = [{"name": s.name, "question": s.question, "path": str(s.path)} for s in list_studies()]
    axes = [_as_json(axis) for axis in AXES.values()]
    if as_json:
        print(json.dumps({"workloads": workloads, "studies": studies, "axes": axes}, indent=2, default=list))
        return
    from rich.markup import escape
    from rich.table import Table

    from corewise.cli.terminal import make_console

    console = make_console(markup=True)
    table = Table(title="Workloads", title_justify="left", box=None, pad_edge=False)
    for name in ("name", "parameters", "modes", "runtimes", "what it is"):
        table.add_column(name, justify="right" if name == "parameters" else "left")
    for w in workloads:
        parameters = f"{w['num_parameters']:,}" if w["num_parameters"] else "-"
        table.add_row(
            w["name"], parameters, " ".join(w["modes"]), " ".join(w["runtimes"]), escape(w["summary"])
        )
    console.print(table)
    console.print("Your own: [bold]path.py:factory[/] (see docs/own-workload.md)\n")
    table = Table(title="Studies (corewise run NAME)", title_justify="left", box=None, pad_edge=False)
    table.add_column("name")
    table.add_column("question")
    for s in studies:
        table.add_row(s["name"], escape(s["question"]))
    console.print(table)
    table = Table(
        title="\nAxes (in a study, or --set AXIS=V1,V2)", title_justify="left", box=None, pad_edge=False
    )
    for name in ("axis", "values", "default", "what it varies"):
        table.add_column(name)
    for a in axes:
        table.add_row(a["name"], ", ".join(a["values"]), a["default"], escape(a["help"]))
    console.print(table)
    console.print("Each of them, and each workload's own parameters: docs/study-files.md")
