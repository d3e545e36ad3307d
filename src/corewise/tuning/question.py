"""The question of a tuning: read from the user's options, expanded to the knobs on this machine."""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from corewise.errors import UserError, suggest_nearest
from corewise.measured.trial import Protocol
from corewise.measured.workloads.base import Traits, describe_traits, is_kernel, list_axis_defaults
from corewise.measured.workloads.custom import is_custom
from corewise.measured.workloads.registry import UnknownName, find_workload
from corewise.run.identity.framework_packages import suggest_install
from corewise.run.machine_view import Host, build_machine_view
from corewise.run.plan import Plan, Planner
from corewise.study.axes import AXES, MODES, Keyword, check_axis_name, read_axis_value
from corewise.study.study import PRESETS, Study, explain_unknown_runtime
from corewise.study.syntax.expressions import Expression
from corewise.study.syntax.yaml_lines import parse_yaml
from corewise.text_format import format_parameter_name, format_value
from corewise.tuning.factory_file import list_imports, require_factory
from corewise.tuning.search.knobs import ALLOWABLE_CLASSES, KnobRequest, Offer, select_knobs
from corewise.tuning.search.setting_space import Setting, Space

# Hexadecimal digits of a question's key.
KEY_LENGTH = 16
JOURNAL_SCHEMA = 1
# Study-level options; they are not axes, so --set does not accept them.
OPTIONS = ("mode", "runtime", "python")


@dataclass(frozen=True, kw_only=True)
class Question:
    """What a user wants tuned; names and values are validated.

    Attributes:
        workload: A workload name, or the absolute path of a file and its factory.
        batch: The batch of all processes together.
        fixed: Axes that are not varied, with their values.
        set_by_workload: Names in `fixed` whose value comes from the workload, not from the user.
        allow: Classes of knobs that may change the results.
    """

    workload: str
    mode: str
    batch: int
    runtime: str = "torch"
    fixed: Mapping[str, Any] = field(default_factory=dict)
    set_by_workload: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    python: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """A short name for studies and headings."""
        return f"{Path(self.workload).name if is_custom(self.workload) else self.workload} {self.mode}"

    @property
    def asked(self) -> tuple[str, ...]:
        """The options that distinguish it from other questions of that name, for headings."""
        arguments = [
            f"{format_parameter_name(n)} {format_value(v)}" for n, v in self.fixed.items() if n.startswith("args.")
        ]
        set_by_user = {
            n: v for n, v in self.fixed.items() if n not in self.set_by_workload and not n.startswith("args.")
        }
        fixed = [f"--set {n}={format_value(v)}" for n, v in set_by_user.items()]
        runtime = [] if self.runtime == "torch" else [f"runtime {self.runtime}"]
        allowed = [f"--allow {word}" for word in sorted(self.allow)]
        return (f"batch {self.batch}", *arguments, *runtime, *fixed, *allowed)

    def build_study(self, params: Mapping[str, Any], protocol: Protocol) -> Study:
        """Build the study whose only point has these parameters."""
        return Study(
            name=f"tune {self.name}",
            path=Path(self.workload),
            question=f"What runs {self.name} fastest here?",
            workloads=(self.workload,),
            modes=(self.mode,),
            runtimes=(self.runtime,),
            python=self.python,
            prefix=(),
            axes={},
            fixed=dict(params),
            constraints=(),
            protocol=protocol,
            environment=self.environment,
            origins={name: _format_option(name, value) for name, value in self.fixed.items()},
        )


def build_question(
    subject: str,
    *,
    mode: str = "infer",
    batch: int | None = None,
    runtime: str = "torch",
    fixed: Mapping[str, Any] | None = None,
    allow: Collection[str] = (),
    python: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Question:
    """Validate the options and build the question; raise UserError for an invalid one."""
    values = validate_values(fixed or {})
    if mode not in MODES:
        raise UserError(f"--mode {mode}: no such mode; {suggest_nearest(mode, MODES)}")
    problem = explain_unknown_runtime(runtime)
    if problem:
        raise UserError(f"--runtime: {problem}")
    check_classes(allow)
    workload = _resolve_workload(subject)
    defaults = list_axis_defaults(None if is_custom(workload) else find_workload(workload))
    set_by_workload = tuple(name for name in defaults if name not in values)
    values = {**defaults, **values}
    fixed_batch = values.pop("batch", None)
    chosen = batch if batch is not None else fixed_batch
    chosen = AXES["batch"].default if chosen is None else chosen
    if isinstance(chosen, bool) or not isinstance(chosen, int) or chosen < 1:
        raise UserError(f"--batch {chosen}: the batch must be an integer of at least 1")
    return Question(
        workload=workload,
        mode=mode,
        batch=chosen,
        runtime=runtime,
        fixed=values,
        set_by_workload=set_by_workload,
        allow=tuple(dict.fromkeys(allow)),
        python=python,
        environment=dict(environment or {}),
    )


def check_classes(allow: Collection[str]) -> None:
    """Raise UserError if a name is not a class of knobs."""
    known = [str(each) for each in ALLOWABLE_CLASSES]
    for name in allow:
        if name not in known:
            raise UserError(f"--allow {name}: no such class; {suggest_nearest(name, known)}")


def validate_values(fixed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fixed axes with parsed values; raise UserError for an invalid name or value."""
    return {name: _parse_fixed_value(name, value) for name, value in fixed.items()}


def read_assignments(assignments: Sequence[str], option: str, prefix: str = "") -> dict[str, Any]:
    """Parse `NAME=VALUE` arguments; each value is read as YAML."""
    values = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals or not name.strip() or not text.strip():
            raise UserError(f"{option} {assignment}: write it as NAME=VALUE, as in {option} {_build_example(option)}")
        document = parse_yaml(text, option)
        if document.mistakes:
            raise UserError(f"{option} {assignment}: {document.mistakes[0].message}")
        values[prefix + name.strip()] = document.value
    return values


@dataclass(frozen=True)
class Tunable:
    """A question on this machine, with its knobs; it plans any of its settings."""

    question: Question
    planner: Planner
    offer: Offer
    traits: Traits

    @classmethod
    def from_question(cls, question: Question, *, trust_environment: bool = False) -> "Tunable":
        """Find the knobs of a question on this machine; raise UserError if it cannot be measured here."""
        study = question.build_study({}, PRESETS["quick"])
        planner = Planner.from_study(study, trust_environment=trust_environment)
        _require_framework(question, planner)
        args = {n.removeprefix("args."): v for n, v in question.fixed.items() if n.startswith("args.")}
        workload = None if is_custom(question.workload) else find_workload(question.workload)
        try:
            traits = describe_traits(workload, args)
        except ValueError as problem:
            raise UserError(str(problem)) from None
        tunable = cls(question, planner, _offer_knobs(question, planner, traits), traits)
        tunable._require_default()
        return tunable

    @property
    def asks_model(self) -> bool:
        """Whether the model itself, once built, says which knobs apply to it."""
        return is_custom(self.question.workload) and self.question.runtime == "torch" and self.traits == Traits()

    def adopt_traits(self, traits: Traits) -> "Tunable":
        """Return the same question with the knobs that apply to a model with these traits."""
        return replace(self, offer=_offer_knobs(self.question, self.planner, traits), traits=traits)

    @property
    def space(self) -> Space:
        return self.offer.space

    @property
    def name(self) -> str:
        return self.question.name

    @property
    def mode(self) -> str:
        return self.question.mode

    @property
    def batch(self) -> int:
        return self.question.batch

    @property
    def asked(self) -> tuple[str, ...]:
        return self.question.asked

    @property
    def host(self) -> Host:
        return self.planner.host

    def list_imports(self) -> tuple[str, ...]:
        """List what the user's file imports from installed packages; nothing for other workloads."""
        is_own = is_custom(self.question.workload)
        return list_imports(Path(self.question.workload.rpartition(":")[0])) if is_own else ()

    def plan(self, setting: Setting, protocol: Protocol, generation: str = "") -> Plan:
        """Plan one setting: one trial, or the reason why it is infeasible."""
        return self.planner.plan(self.question.build_study(self.space.build_params(setting), protocol), generation)

    def compute_key(self) -> str:
        """Compute the key of the journal: equal for the same question on the same class of machine."""
        trial = self.plan(self.space.default, PRESETS["quick"]).trials[0]
        knobs = [[knob.name, [dict(choice) for choice in knob.choices]] for knob in self.space.knobs]
        text = json.dumps([JOURNAL_SCHEMA, trial.trial_id, dict(self.space.base), knobs], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:KEY_LENGTH]

    def _require_default(self) -> None:
        plan = self.plan(self.space.default, PRESETS["quick"])
        if plan.skipped:
            raise UserError(f"{self.question.name} cannot be measured here: {plan.skipped[0].reason}")


def _offer_knobs(question: Question, planner: Planner, traits: Traits) -> Offer:
    """Select the knobs of a workload with these traits on this machine."""
    workload = None if is_custom(question.workload) else find_workload(question.workload)
    request = KnobRequest(
        mode=question.mode,
        runtime=question.runtime,
        traits=traits,
        fixed=question.fixed,
        set_by_workload=question.set_by_workload,
        batch=question.batch,
        allow=question.allow,
        machine=build_machine_view(planner.host, planner.libraries),
        kernel=question.workload if is_kernel(workload) else "",
        is_custom=is_custom(question.workload),
    )

    def explain_infeasible(params: Mapping[str, Any]) -> str:
        plan = planner.plan(question.build_study(params, PRESETS["quick"]))
        return plan.skipped[0].reason if plan.skipped else ""

    return select_knobs(request, explain_infeasible)


def _resolve_workload(subject: str) -> str:
    path, _, factory = subject.rpartition(":")
    if path.endswith(".py") and factory:
        file = Path(path).expanduser().absolute()
        if not file.is_file():
            raise UserError(f"{subject}: file {file} does not exist")
        if not factory.isidentifier():
            raise UserError(f"{subject}: {factory!r} is not a valid function name")
        require_factory(file, factory)
        return f"{file}:{factory}"
    if subject.endswith(".py"):
        raise UserError(
            f"{subject}: name the function in it that returns your model, as in {subject}:make "
            "(see docs/own-workload.md)"
        )
    try:
        find_workload(subject)
    except UnknownName as problem:
        raise UserError(f"{problem}; for your own code, write my.py:make") from None
    return subject


def _parse_fixed_value(name: str, value: Any) -> Any:
    if name in OPTIONS:
        raise UserError(f"--set {name}={value}: {name} is not a knob; use --{name} {value}")
    try:
        check_axis_name(name)
        read = read_axis_value(name, value)
    except ValueError as problem:
        raise UserError(f"{_format_option(name, value)}: {problem}") from None
    if isinstance(read, Keyword | Expression):
        raise UserError(f"{_format_option(name, value)}: a knob must be fixed to a single value, not {value!r}")
    return read


def _format_option(name: str, value: Any) -> str:
    """Format the option that set an axis or a parameter of the workload."""
    if name.startswith("args."):
        return f"--args {name.removeprefix('args.')}={value}"
    return f"--set {name}={value}"


def _build_example(option: str) -> str:
    return "image_size=128" if option == "--args" else "threads=4"


def _require_framework(question: Question, planner: Planner) -> None:
    hint = suggest_install(question.runtime, planner.interpreter)
    if hint:
        raise UserError(
            f"{question.runtime} is not installed for {' '.join(planner.interpreter.command)}.\n"
            f"Install it with: {hint}, or name another interpreter with --python."
        )
