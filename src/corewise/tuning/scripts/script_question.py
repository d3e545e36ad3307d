"""The knobs of an unmodified script: those that can be set from outside."""

import hashlib
import json
import shlex
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from corewise.errors import UserError
from corewise.launch.ranks import OUTSIDE_DEFAULTS
from corewise.machine.software import find_install_hint, find_library
from corewise.measured.parameters import TrialParameters
from corewise.measured.workloads.base import Traits
from corewise.progress import LOADER_WORKERS
from corewise.run.machine_view import PRELOADABLE, Host, build_machine_view, read_host
from corewise.study.axes import AXES
from corewise.study.planning.feasibility import FeasibilityContext, explain_infeasibility
from corewise.study.syntax.expressions import Expression
from corewise.text_format import format_value
from corewise.tuning.scripts.script_command import Script, find_placeholders
from corewise.tuning.search.knobs import LOADER_WORKERS as LOADER_WORKERS_TRIED
from corewise.tuning.search.knobs import STOCK, KnobRequest, Offer, group_by_reason, select_knobs
from corewise.tuning.search.setting_space import Cause, Knob, Space, UntriedChoice

MATH_LIBRARY = UntriedChoice(
    "math library",
    "the wheels of torch and numpy bundle theirs, so neither a variable nor preloading replaces it; "
    "ONEDNN_MAX_CPU_ISA, MKL_ENABLE_INSTRUCTIONS and ATEN_CPU_CAPABILITY only disable instructions",
)
NO_LOADER = UntriedChoice(
    "loader workers",
    f"write {{loader_workers}} for their number in the command, or read {LOADER_WORKERS} in the script",
)
# Knobs that usually gain more than loader workers.
KNOBS_BEFORE_LOADER = ("shape", "allocator")
FIXABLE = (*OUTSIDE_DEFAULTS, "loader_workers")
OUTSIDE = (*FIXABLE, "batch", "batch_scope")


@dataclass(frozen=True)
class ScriptTunable:
    """A script on this machine, with its knobs; `asked` are the options of the question, for headings."""

    script: Script
    host: Host
    offer: Offer
    asked: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return shlex.join(self.script.command)

    @property
    def mode(self) -> str:
        return "script"

    @property
    def batch(self) -> int:
        return self.script.batch or 1

    @property
    def space(self) -> Space:
        return self.offer.space

    def compute_key(self) -> str:
        """Compute the key of the journal: equal for the same command, sources and class of machine."""
        files = [self.script.folder / argument for argument in self.script.command]
        sources = [hashlib.sha256(f.read_bytes()).hexdigest() for f in files if f.suffix == ".py" and f.is_file()]
        knobs = [[knob.name, [dict(choice) for choice in knob.choices]] for knob in self.space.knobs]
        shape = self.host.compute_allocation_shape()
        rate, check = self.script.rate, self.script.check
        patterns = [rate and [rate.pattern.pattern, rate.wants_time], check and check.pattern]
        asked = [self.script.command, str(self.script.folder), *patterns]
        asked += [f"in {self.script.workdir}"] if self.script.workdir else []
        asked += ["launched"] if self.script.default_is_launched else []
        parts = [asked, sources, self.host.class_hash, shape, dict(self.space.base), knobs]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def build_script_tunable(
    script: Script, fixed: Mapping[str, Any], *, distributed: bool, allow: Sequence[str] = (), host: Host | None = None
) -> ScriptTunable:
    """Find the knobs of a script on this machine; raise UserError if an option does not fit its command."""
    names = find_placeholders(script.command)
    _require_batch(script, names, distributed=distributed)
    _require_permitted(fixed, allow, names, distributed=distributed)
    host = host or read_host()
    program = shutil.which(script.command[0]) or script.command[0]
    # If the program is the python of a virtual environment, this is its folder.
    prefix = Path(program).absolute().parent.parent
    libraries = {name for name in PRELOADABLE if find_library(name, python_prefix=prefix) is not None}
    machine = build_machine_view(host, {name: Path(name) for name in libraries})
    hints = {name: find_install_hint(name) for name in PRELOADABLE}
    context = FeasibilityContext(machine, None, hints)
    plain = {**OUTSIDE_DEFAULTS, **STOCK, "threads": machine.num_cores}
    is_changed = any(plain.get(name, value) != value for name, value in fixed.items())
    script = replace(script, default_is_launched=is_changed, is_distributed=distributed)
    options = _describe_question(script, fixed, allow, distributed=distributed)
    fixed = dict(fixed) if distributed else {**fixed, "processes": 1}

    def explain_infeasible(params: Mapping[str, Any]) -> str:
        complete = {**_collect_defaults(), **params, "workload": "script", "mode": "infer", "runtime": "torch"}
        return "; ".join(explain_infeasibility(TrialParameters.from_mapping(complete), context))

    request = KnobRequest(
        mode="train",
        runtime="torch",
        traits=Traits(),
        fixed=fixed,
        batch=script.batch or 1,
        allow=(*allow, "batch-statistics") if distributed else allow,
        machine=machine,
        may_use_gpu=True,
    )
    offer = select_knobs(request, explain_infeasible)
    inside = [knob for knob in offer.space.knobs if not _is_settable_outside(knob.choices)]
    knobs = tuple(knob for knob in offer.space.knobs if knob not in inside)
    left_out = [each for each in offer.left_out if not _is_about_processes(each)]
    left_out = [UntriedChoice(knob.name, "can only be set inside the script") for knob in inside] + [
        each for each in left_out if not _is_inside(each)
    ]
    left_out.append(MATH_LIBRARY)
    if not distributed:
        left_out.append(UntriedChoice("several processes", "--distributed allows them, with {batch_per_rank}"))
    if "loader_workers" not in fixed:
        if "loader_workers" in names or script.mentions(LOADER_WORKERS):
            tried = ({"loader_workers": num} for num in (0, *LOADER_WORKERS_TRIED))
            workers = tuple(tried) if "loader_workers" in names else ({}, *tried)
            loading = Knob("loader_workers", workers, "samples are loaded while others are processed")
            place = sum(knob.name in KNOBS_BEFORE_LOADER for knob in knobs)
            knobs = (*knobs[:place], loading, *knobs[place:])
        else:
            left_out.append(NO_LOADER)
    base = {name: value for name, value in offer.space.base.items() if name in OUTSIDE}
    return ScriptTunable(script, host, Offer(Space(base, knobs), group_by_reason(left_out)), options)


def _require_batch(script: Script, names: Collection[str], *, distributed: bool) -> None:
    """Raise UserError unless --batch and {batch_per_rank} are given together."""
    if distributed and ("batch_per_rank" not in names or script.batch is None):
        raise UserError(
            "--distributed keeps the global batch: write {batch_per_rank} for the batch of each process "
            "in the command, and give the global batch with --batch"
        )
    if script.batch is not None and "batch_per_rank" not in names:
        raise UserError("--batch: the command has no {batch_per_rank}; add it or leave --batch out")
    if "batch_per_rank" in names and script.batch is None:
        raise UserError("{batch_per_rank} needs the global batch: give it with --batch")


def _require_permitted(
    fixed: Mapping[str, Any], allow: Collection[str], names: Collection[str], *, distributed: bool
) -> None:
    """Raise UserError for options that cannot be fixed or allowed from outside."""
    if "batch" in fixed:
        raise UserError("--set batch: give it with --batch, and write {batch_per_rank} in the command")
    for name in fixed:
        if name not in FIXABLE:
            raise UserError(f"--set {name}: can only be set inside the script; available here: {', '.join(FIXABLE)}")
    if fixed.get("processes", 1) != 1 and not distributed:
        raise UserError(
            f"--set processes={fixed['processes']}: several processes need --distributed, which keeps "
            "the global batch by {batch_per_rank} in the command"
        )
    if "lower-precision" in allow:
        raise UserError("--allow lower-precision: a script sets its precision itself; leave it out")
    if "batch" in allow and "batch_per_rank" not in names:
        raise UserError(
            "--allow batch: write {batch_per_rank} for the batch in the command, and give the usual batch with --batch"
        )


def _describe_question(
    script: Script, fixed: Mapping[str, Any], allow: Collection[str], *, distributed: bool
) -> tuple[str, ...]:
    """Describe the options that distinguish the question from others of that command."""
    batch = () if script.batch is None else (f"batch {script.batch}",)
    several = ("--distributed",) if distributed else ()
    values = (f"--set {name}={format_value(value)}" for name, value in fixed.items())
    return (*batch, *several, *values, *(f"--allow {name}" for name in sorted(allow)))


def _collect_defaults() -> dict[str, Any]:
    return {n: a.default for n, a in AXES.items() if not isinstance(a.default, Expression)} | {"threads": 1}


def _is_settable_outside(choices: Sequence[Mapping[str, Any]]) -> bool:
    return all(name in OUTSIDE for choice in choices for name in choice)


def _is_inside(left_out: UntriedChoice) -> bool:
    return left_out.cause is Cause.NOT_ALLOWED or not left_out.axes.isdisjoint(("freezing", "execution", "collectives"))


def _is_about_processes(left_out: UntriedChoice) -> bool:
    return left_out.cause is Cause.FIXED and "processes" in left_out.axes
