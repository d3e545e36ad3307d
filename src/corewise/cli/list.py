"""`corewise list`: list workloads, studies and axes."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from corewise.cli.common_options import JsonOption

if TYPE_CHECKING:
    from corewise.study.axes import Axis


def _axis_to_json(axis: "Axis") -> dict[str, Any]:
    from corewise.cli.render.plan_points import format_value

    # Some defaults are expressions of other axes.
    text = getattr(axis.default, "text", None)
    default = f"= {text}" if text else format_value(axis.default)
    return {"name": axis.name, "values": _describe_values(axis), "default": default, "help": axis.help}


def _describe_values(axis: "Axis") -> list[str]:
    """Return the values that an axis accepts, as docs/study-files.md lists them."""
    if axis.value_type == "count":
        return [f"whole number ≥ {axis.minimum}", *axis.keywords, *(["null"] if axis.takes_null else [])]
    from corewise.measured.parameters import GENERATED_DATA

    return {"flag": ["true", "false"], "folder": [*GENERATED_DATA, "a folder"]}.get(axis.value_type, list(axis.choices))


def list_(as_json: JsonOption = False) -> None:
    """List workloads, built-in studies and the axes that a study can vary.

    Examples:

      corewise list

      corewise list --json | jq '.workloads[].name'
    """
    from corewise.measured.workloads.registry import list_workloads
    from corewise.study.axes import AXES
    from corewise.study.built_in_studies import list_studies

    workloads: list[dict[str, Any]] = [asdict(w) for w in list_workloads()]
    studies = [{"name": s.name, "question": s.question, "path": str(s.path)} for s in list_studies()]
    axes = [_axis_to_json(axis) for axis in AXES.values()]
    if as_json:
        print(json.dumps({"workloads": workloads, "studies": studies, "axes": axes}, indent=2, default=list))
        return
    from rich.markup import escape
    from rich.table import Table

    from corewise.cli.render.console import make_console

    console = make_console(markup=True)
    table = Table(title="Workloads", title_justify="left", box=None, pad_edge=False)
    for name in ("name", "parameters", "modes", "runtimes", "description"):
        table.add_column(name, justify="right" if name == "parameters" else "left")
    for w in workloads:
        parameters = f"{w['num_parameters']:,}" if w["num_parameters"] else "-"
        table.add_row(w["name"], parameters, " ".join(w["modes"]), " ".join(w["runtimes"]), escape(w["summary"]))
    console.print(table)
    console.print("Your own: [bold]path.py:factory[/] (see docs/own-workload.md)\n")
    table = Table(title="Studies (corewise run NAME)", title_justify="left", box=None, pad_edge=False)
    table.add_column("name")
    table.add_column("question")
    for s in studies:
        table.add_row(s["name"], escape(s["question"]))
    console.print(table)
    table = Table(title="\nAxes (in a study, or --set AXIS=V1,V2)", title_justify="left", box=None, pad_edge=False)
    for name in ("axis", "values", "default", "effect"):
        table.add_column(name)
    for a in axes:
        table.add_row(a["name"], ", ".join(a["values"]), a["default"], escape(a["help"]))
    console.print(table)
    console.print("docs/study-files.md describes them and the parameters of each workload.")
