"""Build the command that repeats a tuning from its runs and its answer."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from corewise.analysis.groups import Group
from corewise.analysis.tuning_results import StoredTuning
from corewise.study.record import Record

# The mode of a tuned command.
SCRIPT = "script"


def is_tuning(study: str, groups: Sequence[Group]) -> bool:
    """Return True if a tuning made the runs; its name differs from that of any study file."""
    records = _list_records(groups)
    return bool(records) and all(study in _list_tuning_names(record.params) for record in records)


def build_tune_command(tuning: StoredTuning | None, groups: Sequence[Group]) -> list[str]:
    """Build the verb and its arguments; without an answer, only from the parameters of the runs.

    The patterns that parse the output of a script are recorded in neither.
    """
    params, asked = _list_records(groups)[0].params, list(tuning.asked) if tuning else []
    batch = next((option.removeprefix("batch ") for option in asked if option.startswith("batch ")), "")
    if params.get("mode") == SCRIPT:
        arguments = ["tune", *(["--batch", batch] if batch else []), *_build_options(asked, params)]
        return [*arguments, "--", *_split(str(params["workload"]))]
    arguments = ["tune", str(params["workload"]), "--mode", str(params.get("mode"))]
    arguments += ["--batch", batch or str(_compute_global_batch(params))]
    if params.get("runtime", "torch") != "torch":
        arguments += ["--runtime", str(params["runtime"])]
    for name, value in params.items():
        if name.startswith("args.") and value is not None:
            arguments += ["--args", f"{name.removeprefix('args.')}={_format_value(value)}"]
    return [*arguments, *_build_options(asked, params)]


def _list_records(groups: Sequence[Group]) -> list[Record]:
    return [r for group in groups for r in (*group.records, *(each for each, _ in group.unmeasured))]


def _list_tuning_names(params: Mapping[str, Any]) -> list[str]:
    """Return the possible study names of a tuning; a user's workload may appear without its folders."""
    workload, mode = str(params.get("workload")), str(params.get("mode"))
    if mode == SCRIPT:
        return [f"tune {workload}"]
    return [f"tune {name} {mode}" for name in (workload, Path(workload).name)]


def _build_options(asked: Sequence[str], params: Mapping[str, Any]) -> list[str]:
    """Build the options that fix and allow knobs."""
    arguments = [
        part for name in _list_fixed_axes(asked, params) for part in ("--set", f"{name}={_format_value(params[name])}")
    ]
    allowed = [part for option in asked if option.startswith("--allow ") for part in option.split(maxsplit=1)]
    return [*arguments, *(option for option in asked if option == "--distributed"), *allowed]


def _list_fixed_axes(asked: Sequence[str], params: Mapping[str, Any]) -> list[str]:
    """Return the axes that were fixed; the parameters of each run hold their values."""
    names = [option.removeprefix("--set ").partition("=")[0] for option in asked if option.startswith("--set ")]
    if params.get("device", "cpu") != "cpu":
        names.append("device")
    return [name for name in dict.fromkeys(names) if params.get(name) is not None]


def _compute_global_batch(params: Mapping[str, Any]) -> int:
    num = 1 if params.get("batch_scope") == "global" else int(params.get("processes", 1))
    return num * int(params.get("batch", 1))


def _format_value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _split(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        # The command did not come from a shell, for example because of an unbalanced quote.
        return [command]
