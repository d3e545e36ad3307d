"""Records as a foreign tool or a person may have edited them, each with a valid checksum."""

import copy
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NAN, INFINITY, HUGE = float("nan"), float("inf"), 10**400
NESTED: Any = json.loads("[" * 900 + "]" * 900)

# The place of a value, the value that replaces it, and what readers say about it.
EDITS: tuple[tuple[tuple[str | int, ...], Any, str], ...] = (
    *(
        ((part, name), value, f"{part}.{name} is {shown}, not a finite number")
        for part, name in (("metrics", "step_s"), ("metrics", "samples_per_s"), ("work", "flops_per_sample"))
        for value, shown in (
            (NAN, "the number nan"),
            (INFINITY, "the number inf"),
            (-INFINITY, "the number -inf"),
            (None, "null"),
            (HUGE, "an integer too large for a float"),
            ([1.0], "a list"),
            ("fast", "the text 'fast'"),
        )
    ),
    *(
        (("params", name), [1], f"params.{name} is a list, not {wanted}")
        for name, wanted in (("workload", "text"), ("mode", "text"), ("dtype", "text"), ("threads", "a count"))
    ),
    (("params", "batch"), None, "params.batch is null, not a count"),
    (("params", "processes"), HUGE, "params.processes is an integer too large for a float, not a finite number"),
    (("params", "args.image_size"), NAN, "params.args.image_size is the number nan, not a finite number"),
    (("params", "args.image_size"), NESTED, "params.args.image_size"),
    (("runs", 0, "samples_s", 0), None, "runs[0].samples_s[0] is null, not a finite number"),
    (("runs", 0, "metrics", "step_s"), HUGE, "runs[0].metrics.step_s is an integer too large for a float"),
    (("runs", 0, "metrics"), [], "runs[0].metrics is a list, not a mapping"),
    (("runs", 0, "disturbances"), [NAN], "runs[0].disturbances[0] is the number nan, not text"),
    (("runs", 0, "ranks"), [7], "runs[0].ranks[0] is 7, not a mapping"),
    (("runs", 0), None, "runs[0] is null, not a mapping"),
    (("machine", "hostname"), ["node1"], "machine.hostname is a list, not a single value"),
    (("versions", "torch"), None, "versions.torch is null, not text"),
    (("protocol", "min_runs"), INFINITY, "protocol.min_runs is the number inf, not a finite number"),
    (("notes",), None, "notes is null, not a list"),
    (("question",), "half \ud800", "question is the text"),
    (("study",), ["thread-scaling"], "study is a list, not text"),
    (("status",), "done", "status is the text 'done', not one of ok, failed, skipped"),
    (("finished_at",), 7, "finished_at is 7, not text"),
    (("finished_at",), "0001-01-01T00:00:00+23:59", "finished_at is the text '0001-01-01T00:00:00+23:59', a time"),
    (("started_at",), "9999-12-31T23:59:59-23:59", "started_at is the text '9999-12-31T23:59:59-23:59', a time"),
)


def seal_by_hand(data: Mapping[str, Any]) -> bytes:
    """Return the sealed line of an object, also of values that Corewise would not write."""
    body = json.dumps(data)[:-1].encode()
    return body + b',"crc":"%08x"}\n' % zlib.crc32(body)


def replace_value(data: Mapping[str, Any], place: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    """Return a copy of the object with another value at a place."""
    changed: Any = copy.deepcopy(dict(data))
    holder = changed
    for name in place[:-1]:
        holder = holder[name]
    holder[place[-1]] = value
    return dict(changed)


def edit_record(path: Path, place: tuple[str | int, ...], value: Any) -> None:
    """Replace a value in the only record of a file, and seal the record again."""
    [line] = path.read_bytes().splitlines()
    data = json.loads(line)
    del data["crc"]
    path.write_bytes(seal_by_hand(replace_value(data, place, value)))
