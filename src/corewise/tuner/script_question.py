"""What of an untouched script can be tuned: the knobs that are set from outside."""

import hashlib
import json
import shlex
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from corewise.engine.machine_view import PRELOADABLE, Host, planning_view, read_host
from corewise.launcher.ranks import OUTSIDE_DEFAULTS
from corewise.machine.libraries import find_library, install_hint
from corewise.progress import LOADER_WORKERS
from corewise.report.words import shown
from corewise.spec.axes import AXES
from corewise.spec.errors import UserError
from corewise.spec.expressions import Expression
from corewise.spec.feasibility import Circumstances, reasons_against
from corewise.tuner.knobs import LOADER_WORKERS as LOADER_WORKERS_TRIED
from corewise.tuner.knobs import STOCK, Asked, Offer, knobs_for, together
from corewise.tuner.script import Script, placeholders
from corewise.tuner.space import Knob, LeftOut, Space
from corewise.workloads.base import Traits

MATH_LIBRARY = LeftOut(
    "math library",
    "wheels of torch and numpy carry theirs within, so no variable and no preloading exchanges it; "
    "ONEDNN_MAX_CPU_ISA, MKL_ENABLE_INSTRUCTIONS and ATEN_CPU_CAPABILITY only take instructions away",
)
NO_LOADER = LeftOut(
    "loader workers",
    f"write {{loader_workers}} where the command says their number, or read {LOADER_WORKERS} in the script",
)
BEFORE_LOADING = ("shape", "allocator")  # knobs that usually give more than loader workers
FIXABLE = (*OUTSIDE_DEFAULTS, "loader_workers")
OUTSIDE = (*FIXABLE, "batch", "batch_scope")


@dataclass(frozen=True)
class ScriptTunable:
    """A script on this machine, with the knobs that can be set from outside."""

    script: Script
    host: Host
    offer: Offer
    asked: tuple[str, ...] = ()  # what sets it apart from others of that command, in words for headings

    @property
    def name(self) -> str:
        return shlex.join(self.script.words)

    @property
    def mode(self) -> str:
        return "script"

    @property
    def batch(self) -> int:
        return self.script.batch or 1

    @property
    def space(self) -> Space:
        return self.offer.space

    def key(self) -> str:
        """The same for the same command in the same folder on the same kind of machine."""
        files = [self.script.folder / word for word in self.script.words]
        sources = [
            hashlib.sha256(f.read_bytes()).hexdigest() for f in files if f.suffix == ".py" and f.is_file()
        ]
        knobs = [[knob.name, [dict(choice) for choice in knob.choices]] for knob in self.space.knobs]
        shape = self.host.allocation_shape()
        patterns = [each and each.pattern for each in (self.script.pattern, self.script.check)]
        asked = [self.script.words, str(self.script.folder), *patterns]
        asked += ["launched"] if self.script.default_is_launched else []
        parts = [asked, sources, self.host.class_hash, shape, dict(self.space.base), knobs]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def make_script(
    script: Script,
    fixed: Mapping[str, Any],
    *,
    distributed: bool,
    allow: Sequence[str] = (),
    host: Host | None = None,
) -> ScriptTunable:
    """The script with its knobs here; a UserError where its command lacks what a wish needs."""
    names = placeholders(script.words)
    _require_batch(script, names, distributed=distributed)
    _require_permitted(fixed, allow, names, distributed=distributed)
    host = host or read_host()
    program = shutil.which(script.words[0]) or script.words[0]
    prefix = Path(program).absolute().parent.parent  # of a virtual environment's python
    found = {name for name in PRELOADABLE if find_library(name, python_prefix=prefix) is not None}
    machine = planning_view(host, {name: Path(name) for name in found})
    hints = {name: install_hint(name) for name in PRELOADABLE}
    around = Circumstances(machine, None, hints)
    plain = {**OUTSIDE_DEFAULTS, **STOCK, "threads": machine.num_cores}
    is_changed = any(plain.get(name, value) != value for name, value in fixed.items())
    script = replace(script, default_is_launched=is_changed)
    asked_words = _asked(script, fixed, allow, distributed=distributed)
    fixed = dict(fixed) if distributed else {**fixed, "processes": 1}

    def reason_against(params: Mapping[str, Any]) -> str:
        complete = {**_defaults(), **params, "workload": "script", "mode": "infer", "runtime": "torch"}
        return "; ".join(reasons_against(complete, around))

    asked = Asked(
        mode="train",
        runtime="torch",
        traits=Traits(),
        fixed=fixed,
        batch=script.batch or 1,
        allow=(*allow, "batch-statistics") if distributed else allow,
        machine=machine,
        may_use_gpu=True,
    )
    offer = knobs_for(asked, reason_against)
    inside = [knob for knob in offer.space.knobs if not _from_outside(knob.choices)]
    kept = tuple(knob for knob in offer.space.knobs if knob not in inside)
    left_out = [each for each in offer.left_out if not each.reason.startswith("you fixed processes")]
    left_out = [LeftOut(knob.name, "can only be set inside the script") for knob in inside] + [
        each for each in left_out if not _is_inside(each)
    ]
    left_out.append(MATH_LIBRARY)
    if not distributed:
        left_out.append(LeftOut("several processes", "--distributed allows them, with {batch_per_rank}"))
    if "loader_workers" not in fixed:
        if "loader_workers" in names or _reads_variable(script):
            tried = ({"loader_workers": num} for num in (0, *LOADER_WORKERS_TRIED))
            workers = tuple(tried) if "loader_workers" in names else ({}, *tried)  # the default: as typed
            loading = Knob("loader_workers", workers, "samples come while others are worked on")
            place = sum(knob.name in BEFORE_LOADING for knob in kept)
            kept = (*kept[:place], loading, *kept[place:])
        else:
            left_out.append(NO_LOADER)
    base = {name: value for name, value in offer.space.base.items() if name in OUTSIDE}
    return ScriptTunable(script, host, Offer(Space(base, kept), together(left_out)), asked_words)


def _require_batch(script: Script, names: Collection[str], *, distributed: bool) -> None:
    """A UserError where the batch and its place in the command do not both stand there."""
    if distributed and ("batch_per_rank" not in names or script.batch is None):
        raise UserError(
            "--distributed keeps the global batch: write {batch_per_rank} where the command says each "
            "process's batch, and give the global one with --batch"
        )
    if script.batch is not None and "batch_per_rank" not in names:
        raise UserError("--batch: the command has no {batch_per_rank} that would take it; leave it out")
    if "batch_per_rank" in names and script.batch is None:
        raise UserError("{batch_per_rank} needs the global batch: give it with --batch")


def _require_permitted(
    fixed: Mapping[str, Any], allow: Collection[str], names: Collection[str], *, distributed: bool
) -> None:
    """A UserError for what cannot be fixed, or allowed, from outside."""
    if "batch" in fixed:
        raise UserError("--set batch: give it with --batch, and write {batch_per_rank} in the command")
    for name in fixed:
        if name not in FIXABLE:
            raise UserError(f"--set {name}: can only be set inside the script; from outside: {_names()}")
    if fixed.get("processes", 1) != 1 and not distributed:
        raise UserError(
            f"--set processes={fixed['processes']}: processes stay 1 unless --distributed, which keeps the "
            "global batch by {batch_per_rank} in the command"
        )
    if "lower-precision" in allow:
        raise UserError("--allow lower-precision: a script sets its precision itself; leave it out")
    if "batch" in allow and "batch_per_rank" not in names:
        raise UserError(
            "--allow batch: write {batch_per_rank} where the command says the batch, and give the usual one "
            "with --batch"
        )


def _asked(
    script: Script, fixed: Mapping[str, Any], allow: Collection[str], *, distributed: bool
) -> tuple[str, ...]:
    """What sets the question apart from others of that command, in words for headings."""
    batch = () if script.batch is None else (f"batch {script.batch}",)
    several = ("--distributed",) if distributed else ()
    values = (f"--set {name}={shown(value)}" for name, value in fixed.items())
    return (*batch, *several, *values, *(f"--allow {word}" for word in sorted(allow)))


def _names() -> str:
    return ", ".join(FIXABLE)


def _defaults() -> dict[str, Any]:
    return {n: a.default for n, a in AXES.items() if not isinstance(a.default, Expression)} | {"threads": 1}


def _reads_variable(script: Script) -> bool:
    """Whether a file of the command speaks of the variable for loader workers."""
    files = [script.folder / word for word in script.words if word.endswith(".py")]
    return any(LOADER_WORKERS in each.read_text(errors="replace") for each in files if each.is_file())


def _from_outside(choices: Sequence[Mapping[str, Any]]) -> bool:
    return all(name in OUTSIDE for choice in choices for name in choice)


def _is_inside(left_out: LeftOut) -> bool:
    return any(word in left_out.reason for word in ("--allow", "freezing", "execution"))
