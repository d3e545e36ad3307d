"""What a framework adds to an operator by reordering its tensors: the kernel alone beside the whole step."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from corewise.report.groups import Group
from corewise.report.model import Column, Table
from corewise.report.phrases import axis_title, task_words
from corewise.report.words import shown

REORDERS, LAYOUT, PEER = "args.reorders", "memory_format", "benchdnn_avg_s"
PEER_HINT = "mean time of oneDNN's own program on the same cores, just before: the kernel alone"


def reorder_table(group: Group) -> Table | None:
    """The tax of each trial with reorders, against the fastest like it without; None where there is none."""
    if REORDERS not in group.columns:
        return None
    others = [name for name in group.varying if name not in (REORDERS, LAYOUT)]
    rows = list(_rows(group, others))
    if not rows:
        return None
    peers = bool((group.metric(PEER) > 0).any())
    return Table(
        key="reorders",
        title=f"{task_words(group)}: reorder tax",
        columns=[
            *(Column(key=name, title=axis_title(name)) for name in others),
            Column(key="layout", title="memory format"),
            Column(key="whole", title="step with reorders", kind="seconds"),
            Column(key="alone", title="kernel alone", kind="seconds"),
            Column(key="alone_layout", title="its memory format"),
            Column(key="tax", title="tax", kind="percent", hint="time added, of the kernel's own"),
            *([Column(key=PEER, title="benchdnn", kind="seconds", hint=PEER_HINT)] if peers else []),
        ],
        rows=[row if peers else row[:-1] for row in rows],
        caption=(
            "Tensors that come plain are reordered for the kernel, and its result back. The kernel alone is "
            "the fastest trial like it with `args.reorders: excluded`; the tax is what the step takes longer."
        ),
    )


def _rows(group: Group, others: Sequence[str]) -> Iterator[list[Any]]:
    steps_s = group.metric("step_s")
    keys = [column.codes for column in group.columns.values()][::-1]
    known = [i for i in np.lexsort(keys).tolist() if steps_s[i] > 0]
    alone: dict[tuple[Any, ...], int] = {}
    for i in known:
        key = _like(group.points[i], others)
        faster = key not in alone or steps_s[i] < steps_s[alone[key]]
        if group.points[i][REORDERS] == "excluded" and faster:
            alone[key] = i
    for i in known:
        point, kernel = group.points[i], alone.get(_like(group.points[i], others))
        if point[REORDERS] == "included" and kernel is not None:
            whole_s, alone_s = float(steps_s[i]), float(steps_s[kernel])
            layouts = [str(_value(group, k, LAYOUT)) for k in (i, kernel)]
            told = [shown(point[name]) for name in others]
            peer_s = float(group.metric(PEER)[kernel])
            peer = peer_s if peer_s > 0 else None
            yield [*told, layouts[0], whole_s, alone_s, layouts[1], whole_s / alone_s - 1, peer]


def _like(point: Mapping[str, Any], others: Sequence[str]) -> tuple[Any, ...]:
    return tuple(shown(point[name]) for name in others)


def _value(group: Group, i: int, name: str) -> Any:
    return group.points[i].get(name, group.constant.get(name, ""))
