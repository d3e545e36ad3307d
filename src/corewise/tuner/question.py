"""What is to be tuned: from words of the user to a study of one point, and its knobs here."""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from corewise.engine.frameworks import missing_framework
from corewise.engine.machine_view import Host, planning_view
from corewise.engine.plan import Plan, Planner
from corewise.report.words import named, shown
from corewise.spec.axes import AXES, MODES, Word, check_axis_name, read_axis_value
from corewise.spec.errors import UserError, nearest
from corewise.spec.expressions import Expression
from corewise.spec.study import PRESETS, Study, unknown_runtime
from corewise.spec.trial import Protocol
from corewise.spec.yaml_lines import parse_yaml
from corewise.tuner.knobs import GRANTED, Asked, Offer, knobs_for
from corewise.tuner.space import Setting, Space
from corewise.workloads.base import Traits, is_kernel, own_defaults, traits_of
from corewise.workloads.custom import is_custom
from corewise.workloads.registry import UnknownName, find_workload

KEY_LENGTH = 16
JOURNAL_SCHEMA = 1
OPTIONS = ("mode", "runtime", "python")  # of the command, which a study file says at its left margin


@dataclass(frozen=True, kw_only=True)
class Question:
    """What a user wants tuned, checked as far as words can be."""

    workload: str  # a name, or the absolute path of a file and its factory
    mode: str
    batch: int
    runtime: str = "torch"
    fixed: Mapping[str, Any] = field(default_factory=dict)  # axes that are not varied
    own: tuple[str, ...] = ()  # those of them that the workload knows best, not the user
    allow: tuple[str, ...] = ()
    python: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """A short name for studies and headings."""
        return f"{Path(self.workload).name if is_custom(self.workload) else self.workload} {self.mode}"

    @property
    def asked(self) -> tuple[str, ...]:
        """What sets it apart from other questions of that name, in words for headings."""
        own = [f"{named(n)} {shown(v)}" for n, v in self.fixed.items() if n.startswith("args.")]
        set_by_user = {n: v for n, v in self.fixed.items() if n not in self.own and not n.startswith("args.")}
        fixed = [f"--set {n}={shown(v)}" for n, v in set_by_user.items()]
        runtime = [] if self.runtime == "torch" else [f"runtime {self.runtime}"]
        allowed = [f"--allow {word}" for word in sorted(self.allow)]
        return (f"batch {self.batch}", *own, *runtime, *fixed, *allowed)

    def study(self, params: Mapping[str, Any], protocol: Protocol) -> Study:
        """The study whose only point has these parameters."""
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
            origins={name: _as_typed(name, value) for name, value in self.fixed.items()},
        )


def make_question(
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
    """The question; a UserError tells what is wrong with it."""
    values = checked_values(fixed or {})
    if mode not in MODES:
        raise UserError(f"--mode {mode}: no such mode; {nearest(mode, MODES)}")
    problem = unknown_runtime(runtime)
    if problem:
        raise UserError(f"--runtime: {problem}")
    check_classes(allow)
    workload = _workload(subject)
    defaults = own_defaults(None if is_custom(workload) else find_workload(workload))
    own = tuple(name for name in defaults if name not in values)
    values = {**defaults, **values}
    fixed_batch = values.pop("batch", None)
    chosen = batch if batch is not None else fixed_batch
    chosen = AXES["batch"].default if chosen is None else chosen
    if isinstance(chosen, bool) or not isinstance(chosen, int) or chosen < 1:
        raise UserError(f"--batch {chosen}: a batch is a whole number of at least 1")
    return Question(
        workload=workload,
        mode=mode,
        batch=chosen,
        runtime=runtime,
        fixed=values,
        own=own,
        allow=tuple(dict.fromkeys(allow)),
        python=python,
        environment=dict(environment or {}),
    )


def check_classes(allow: Collection[str]) -> None:
    """Raises a UserError for a word that is no class of knobs."""
    for word in allow:
        if word not in GRANTED:
            raise UserError(
                f"--allow {word}: no such class; {nearest(word, [str(each) for each in GRANTED])}"
            )


def checked_values(fixed: Mapping[str, Any]) -> dict[str, Any]:
    """The axes that are not varied, each with a value it can take; a UserError otherwise."""
    return {name: _axis_value(name, value) for name, value in fixed.items()}


def read_assignments(words: Sequence[str], option: str, prefix: str = "") -> dict[str, Any]:
    """The values of `NAME=VALUE` words, each read as YAML."""
    found = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name.strip() or not text.strip():
            raise UserError(f"{option} {word}: write it as NAME=VALUE, as in {option} {_example(option)}")
        document = parse_yaml(text, option)
        if document.mistakes:
            raise UserError(f"{option} {word}: {document.mistakes[0].what}")
        found[prefix + name.strip()] = document.value
    return found


@dataclass(frozen=True)
class Tunable:
    """A question on this machine: its knobs, and plans of any of its settings."""

    question: Question
    planner: Planner
    offer: Offer
    traits: Traits

    @classmethod
    def of(cls, question: Question) -> "Tunable":
        """The question with the knobs it has here; a UserError where it cannot be asked."""
        planner = Planner.of(question.study({}, PRESETS["quick"]))
        _require_framework(question, planner)
        args = {n.removeprefix("args."): v for n, v in question.fixed.items() if n.startswith("args.")}
        workload = None if is_custom(question.workload) else find_workload(question.workload)
        try:
            traits = traits_of(workload, args)
        except ValueError as problem:
            raise UserError(str(problem)) from None
        asked = Asked(
            mode=question.mode,
            runtime=question.runtime,
            traits=traits,
            fixed=question.fixed,
            own=question.own,
            batch=question.batch,
            allow=question.allow,
            machine=planning_view(planner.host, planner.libraries),
            kernel=question.workload if is_kernel(workload) else "",
        )

        def reason_against(params: Mapping[str, Any]) -> str:
            plan = planner.plan(question.study(params, PRESETS["quick"]))
            return plan.skipped[0].reason if plan.skipped else ""

        found = cls(question, planner, knobs_for(asked, reason_against), traits)
        found._require_default()
        return found

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

    def plan(self, setting: Setting, protocol: Protocol) -> Plan:
        """The plan of one setting: a trial, or the reason why it cannot be."""
        return self.planner.plan(self.question.study(self.space.params(setting), protocol))

    def key(self) -> str:
        """The same for the same question on the same kind of machine: what is known of it is kept by it."""
        trial = self.plan(self.space.default, PRESETS["quick"]).trials[0]
        knobs = [[knob.name, [dict(choice) for choice in knob.choices]] for knob in self.space.knobs]
        text = json.dumps([JOURNAL_SCHEMA, trial.trial_id, dict(self.space.base), knobs], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:KEY_LENGTH]

    def _require_default(self) -> None:
        plan = self.plan(self.space.default, PRESETS["quick"])
        if plan.skipped:
            raise UserError(f"{self.question.name} cannot be measured here: {plan.skipped[0].reason}")


def _workload(subject: str) -> str:
    path, _, factory = subject.rpartition(":")
    if path.endswith(".py") and factory:
        file = Path(path).expanduser().absolute()
        if not file.is_file():
            raise UserError(f"{subject}: there is no file {file}")
        if not factory.isidentifier():
            raise UserError(f"{subject}: {factory!r} cannot be the name of a function")
        return f"{file}:{factory}"
    if subject.endswith(".py"):
        raise UserError(
            f"{subject}: name the function in it that returns your model, as in {subject}:make "
            "(docs/own-workload.md says what it returns)"
        )
    try:
        find_workload(subject)
    except UnknownName as problem:
        raise UserError(f"{problem}; your own code is named as in my.py:make") from None
    return subject


def _axis_value(name: str, value: Any) -> Any:
    if name in OPTIONS:
        raise UserError(f"--set {name}={value}: {name} is no knob; give it as --{name} {value}")
    try:
        check_axis_name(name)
        read = read_axis_value(name, value)
    except ValueError as problem:
        raise UserError(f"{_as_typed(name, value)}: {problem}") from None
    if isinstance(read, Word | Expression):
        raise UserError(f"{_as_typed(name, value)}: a knob is fixed to one value, not to {value!r}")
    return read


def _as_typed(name: str, value: Any) -> str:
    """The option that gave an axis its value, or a workload its parameter."""
    if name.startswith("args."):
        return f"--args {name.removeprefix('args.')}={value}"
    return f"--set {name}={value}"


def _example(option: str) -> str:
    return "image_size=128" if option == "--args" else "threads=4"


def _require_framework(question: Question, planner: Planner) -> None:
    hint = missing_framework(question.runtime, planner.interpreter)
    if hint:
        raise UserError(
            f"{question.runtime} is not installed for {' '.join(planner.interpreter.words)}.\n"
            f"Install it with: {hint}, or name another interpreter with --python."
        )
