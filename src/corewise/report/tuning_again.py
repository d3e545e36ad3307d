"""The words that ask a tuning's question again, made of what its runs and its answer tell."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from corewise.report.groups import Group
from corewise.report.tunings import Tuning
from corewise.spec.record import Record

SCRIPT = "script"  # the mode of a command that was tuned


def is_tuning(study: str, groups: Sequence[Group]) -> bool:
    """True where a tuning made the runs, under a name that no file of a study has."""
    records = _records(groups)
    return bool(records) and all(study in _names_of(record.params) for record in records)


def tune_words(tuning: Tuning | None, groups: Sequence[Group]) -> list[str]:
    """The verb and what stands behind it; without an answer only what the runs themselves tell.

    What a script's output is read by is in neither.
    """
    params, asked = _records(groups)[0].params, list(tuning.asked) if tuning else []
    batch = next((word.removeprefix("batch ") for word in asked if word.startswith("batch ")), "")
    if params.get("mode") == SCRIPT:
        words = ["tune", *(["--batch", batch] if batch else []), *_wishes(asked, params)]
        return [*words, "--", *_split(str(params["workload"]))]
    words = ["tune", str(params["workload"]), "--mode", str(params.get("mode"))]
    words += ["--batch", batch or str(_batch_of_all(params))]
    if params.get("runtime", "torch") != "torch":
        words += ["--runtime", str(params["runtime"])]
    for name, value in params.items():
        if name.startswith("args.") and value is not None:
            words += ["--args", f"{name.removeprefix('args.')}={_typed(value)}"]
    return [*words, *_wishes(asked, params)]


def _records(groups: Sequence[Group]) -> list[Record]:
    return [r for group in groups for r in (*group.records, *(each for each, _ in group.unmeasured))]


def _names_of(params: Mapping[str, Any]) -> list[str]:
    """What a tuning of this work is called; one of a factory by its file without the folders."""
    workload, mode = str(params.get("workload")), str(params.get("mode"))
    if mode == SCRIPT:
        return [f"tune {workload}"]
    return [f"tune {name} {mode}" for name in (workload, Path(workload).name)]


def _wishes(asked: Sequence[str], params: Mapping[str, Any]) -> list[str]:
    """The options by which knobs were fixed and allowed."""
    words = [part for name in _fixed(asked, params) for part in ("--set", f"{name}={_typed(params[name])}")]
    allowed = [part for word in asked if word.startswith("--allow ") for part in word.split(maxsplit=1)]
    return [*words, *(word for word in asked if word == "--distributed"), *allowed]


def _fixed(asked: Sequence[str], params: Mapping[str, Any]) -> list[str]:
    """The axes that were not varied: each run has their values."""
    names = [word.removeprefix("--set ").partition("=")[0] for word in asked if word.startswith("--set ")]
    if params.get("device", "cpu") != "cpu":
        names.append("device")
    return [name for name in dict.fromkeys(names) if params.get(name) is not None]


def _batch_of_all(params: Mapping[str, Any]) -> int:
    num = 1 if params.get("batch_scope") == "global" else int(params.get("processes", 1))
    return num * int(params.get("batch", 1))


def _typed(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _split(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # no command that a shell has split before
        return [command]
