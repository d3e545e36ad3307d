"""A question as a file: reading a study, with every mistake in it told at once."""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from corewise.spec.axes import AXES, MODES, RUNTIMES, AxisValue
from corewise.spec.errors import UserError, nearest
from corewise.spec.expressions import Expression
from corewise.spec.overrides import apply_overrides
from corewise.spec.sections import SectionReader
from corewise.spec.shipped import list_studies as list_studies
from corewise.spec.shipped import locate_study, study_name
from corewise.spec.trial import Protocol
from corewise.spec.yaml_lines import Document, Mistake, mistakes_error, read_yaml

PRESETS: Mapping[str, Protocol] = {
    "quick": Protocol(
        min_runs=3,
        max_runs=4,
        target_interval=0.05,
        min_warmup_steps=2,
        max_warmup_s=5.0,
        min_samples=5,
        min_sample_s=0.3,
        timeout_s=120.0,
    ),
    "normal": Protocol(),
    "thorough": Protocol(
        min_runs=10,
        max_runs=30,
        target_interval=0.01,
        max_warmup_s=60.0,
        steady_tolerance=0.02,
        min_samples=20,
        min_sample_s=3.0,
        timeout_s=1800.0,
    ),
}
# What a trial sets from its own parameters: a second say would make its record untrue.
GOVERNED = {
    "OMP_NUM_THREADS": "threads",
    "MKL_NUM_THREADS": "threads",
    "OPENBLAS_NUM_THREADS": "threads",
    "PJRT_NPROC": "threads",
    "TF_NUM_INTRAOP_THREADS": "threads",
    "TF_NUM_INTEROP_THREADS": "interop_threads",
    "TF_ENABLE_ONEDNN_OPTS": "math",
    "JAX_PLATFORMS": "device",
    "OMP_WAIT_POLICY": "wait_policy",
    "LD_PRELOAD": "allocator or openmp",
}


@dataclass(frozen=True)
class Constraint:
    """A condition every point of the study meets."""

    condition: Expression
    where: str


@dataclass(frozen=True)
class Study:
    """A question, checked; paths in it are absolute."""

    name: str
    path: Path
    question: str
    workloads: tuple[str, ...]
    modes: tuple[str, ...]
    runtimes: tuple[str, ...]
    python: str | None
    prefix: tuple[str, ...]
    axes: Mapping[str, tuple[AxisValue, ...]]
    fixed: Mapping[str, AxisValue]
    constraints: tuple[Constraint, ...]
    protocol: Protocol
    environment: Mapping[str, str]
    origins: Mapping[str, str] = field(default_factory=dict)  # axis or workload -> where it was written
    left_out: tuple[str, ...] = ()  # workloads of the file, where `--set` chose among them

    def where(self, name: str) -> str:
        """The file and line (or `--set`) that gave an axis or a workload."""
        return self.origins.get(name, str(self.path))


def load_study(path_or_name: str | Path, overrides: Sequence[str] = ()) -> Study:
    """The study in a file or of a ready-made name, with `--set` overrides; a UserError tells all mistakes."""
    path = locate_study(path_or_name)
    document = read_yaml(path)
    if not isinstance(document.value, dict):
        what = type(document.value).__name__
        raise UserError(f"{document.where(())}: a study is made of `key: value` lines, not a {what}")
    listed = _listed(document.value.get("workload"))
    document = apply_overrides(document, overrides)
    reader = SectionReader(document, path.parent)
    axes, fixed = reader.axes(), reader.fixed()
    reader.check_together(axes, fixed)
    constraints, workloads = reader.constraints(), reader.workloads()
    model, model_mistakes = _read_model(document)
    protocol, protocol_mistakes = _protocol(document, model)
    mistakes = [*document.mistakes, *reader.mistakes, *model_mistakes, *protocol_mistakes]
    if mistakes or model is None:
        raise mistakes_error(mistakes)
    python = model.python
    if python is not None and "/" in python:
        python = reader.absolute(python, ("python",))
    return Study(
        name=study_name(path),
        path=path,
        question=" ".join(model.question.split()),
        workloads=tuple(workloads),
        modes=tuple(dict.fromkeys(model.mode)),
        runtimes=tuple(dict.fromkeys(model.runtime)),
        python=python,
        prefix=tuple(model.prefix),
        axes=axes,
        fixed=fixed,
        constraints=tuple(Constraint(condition, where) for condition, where in constraints),
        protocol=protocol,
        environment=model.environment,
        origins=_origins(document, axes, fixed, workloads),
        left_out=_left_out(listed, model.workload),
    )


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) or value is None else [value]


def _left_out(listed: Any, chosen: Sequence[str]) -> tuple[str, ...]:
    """The workloads that the file names and `--set` did not choose; none where it named others."""
    names = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
    return tuple(name for name in names if name not in chosen) if set(chosen) <= set(names) else ()


def _empty_when_absent(value: Any) -> Any:
    return {} if value is None else value


def _one_of(kind: str, words: Sequence[str]) -> AfterValidator:
    def check(word: str) -> str:
        if word not in words:
            hint = nearest(word, words)
            raise PydanticCustomError("told", "{text}", {"text": f"unknown {kind} {word!r}; {hint}"})
        return word

    return AfterValidator(check)


def unknown_runtime(word: str) -> str:
    """Why there is no such runtime, with the nearest one; empty where there is."""
    if word in RUNTIMES:  # the quick way: other packages' runtimes are looked up only when asked for
        return ""
    from corewise.runtimes.registry import list_runtimes

    known = list_runtimes()
    return "" if word in known else f"unknown runtime {word!r}; {nearest(word, known)}"


def _known_runtime(word: str) -> str:
    problem = unknown_runtime(word)
    if problem:
        raise PydanticCustomError("told", "{text}", {"text": problem})
    return word


def _told(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The check, its ValueError's text passed on as it stands."""

    def checked(value: Any) -> Any:
        try:
            return check(value)
        except ValueError as error:
            raise PydanticCustomError("told", "{text}", {"text": str(error)}) from None

    return checked


def _split_prefix(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return shlex.split(value)
        except ValueError as error:
            raise ValueError(f"prefix cannot be split into words: {error}") from None
    return [] if value is None else value


def _variable_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError(f"{name!r} cannot be the name of an environment variable")
    if name in GOVERNED:
        raise ValueError(f"{name} is set by the trial itself; use the axis {GOVERNED[name]}")
    return name


def _variable_value(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"the value of an environment variable is text, not {value!r:.60}; put it in quotes")
    return str(value)


def _expand_preset(value: Any) -> Any:
    return {"preset": value} if isinstance(value, str) else _empty_when_absent(value)


Count = Annotated[int, Field(ge=1, le=1_000_000)]
Seconds = Annotated[float, Field(gt=0, le=1e7, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]
VariableName = Annotated[str, AfterValidator(_told(_variable_name))]
VariableValue = Annotated[str, BeforeValidator(_told(_variable_value))]


class _FileModel(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ProtocolFile(_FileModel):
    """The `protocol` section: a preset, and fields that differ from it."""

    preset: Annotated[str, _one_of("preset", tuple(PRESETS))] = "normal"
    min_runs: Count | None = None
    max_runs: Count | None = None
    target_interval: Share | None = None
    confidence: Share | None = None
    min_warmup_steps: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    max_warmup_s: Seconds | None = None
    steady_tolerance: Share | None = None
    min_samples: Count | None = None
    min_sample_s: Annotated[float, Field(ge=0, le=1e7, allow_inf_nan=False)] | None = None
    max_samples: Count | None = None
    timeout_s: Seconds | None = None
    max_repeats_disturbed: Annotated[int, Field(ge=0, le=1000)] | None = None
    start: Annotated[str, _one_of("start", ("fork", "fresh"))] | None = None


class StudyFile(_FileModel):
    """A study file as people write it."""

    question: str = ""
    workload: Annotated[list[str], BeforeValidator(_listed), Field(min_length=1)]
    mode: Annotated[
        list[Annotated[str, _one_of("mode", MODES)]], BeforeValidator(_listed), Field(min_length=1)
    ] = ["infer"]
    runtime: Annotated[
        list[Annotated[str, AfterValidator(_known_runtime)]], BeforeValidator(_listed), Field(min_length=1)
    ] = ["torch"]
    python: Annotated[str, Field(min_length=1)] | None = None
    prefix: Annotated[list[str], BeforeValidator(_told(_split_prefix))] = []
    axes: Annotated[dict[str, Any], BeforeValidator(_empty_when_absent)] = {}
    fixed: Annotated[dict[str, Any], BeforeValidator(_empty_when_absent)] = {}
    constraints: Annotated[list[str], BeforeValidator(lambda v: _listed(v) or [])] = []
    protocol: Annotated[ProtocolFile, BeforeValidator(_expand_preset)] = ProtocolFile()
    environment: Annotated[dict[VariableName, VariableValue], BeforeValidator(_empty_when_absent)] = {}


def _read_model(document: Document) -> tuple[StudyFile | None, list[Mistake]]:
    try:
        return StudyFile.model_validate(document.value), []
    except ValidationError as error:
        details = error.errors(include_url=False)
        return None, [Mistake(document.where(item["loc"]), _explain(item)) for item in details]


_NEEDED = {
    "string_type": "needs a text",
    "int_type": "needs a whole number",
    "float_type": "needs a number",
    "list_type": "needs a value or a list",
    "dict_type": "needs `name: value` lines",
    "model_type": "needs `name: value` lines",
}


def _explain(item: ErrorDetails) -> str:
    name = ".".join(str(part) for part in item["loc"] if isinstance(part, str))
    if item["type"] == "told":
        return item["msg"]
    if item["type"] == "missing":
        return f"{name} is missing; say what to measure, as in `workload: resnet50`"
    if item["type"] == "extra_forbidden":
        return _explain_unknown(name)
    if item["type"] == "too_short":
        return f"{name} is empty; give it a value"
    needed = _NEEDED.get(item["type"], item["msg"].replace("Input should be", "must be"))
    return f"{name}: {needed}, not {item['input']!r:.60}"


def _explain_unknown(name: str) -> str:
    section, _, field_name = name.rpartition(".")
    if section == "protocol":
        return f"unknown protocol field {field_name!r}; {nearest(field_name, ProtocolFile.model_fields)}"
    if name in AXES or name.startswith("args."):
        return f"unknown key {name!r}; {name} is an axis: put it under `axes:` or `fixed:`"
    return f"unknown key {name!r}; {nearest(name, StudyFile.model_fields)}"


def _protocol(document: Document, model: StudyFile | None) -> tuple[Protocol, list[Mistake]]:
    """The protocol, where a least and a most that contradict each other are a mistake."""
    if model is None:
        return Protocol(), []
    given = model.protocol.model_dump(exclude={"preset"}, exclude_none=True)
    protocol = replace(PRESETS[model.protocol.preset], **given)
    mistakes = []
    for least, most in (("min_runs", "max_runs"), ("min_samples", "max_samples")):
        low, high = getattr(protocol, least), getattr(protocol, most)
        if low <= high:
            continue
        if least in given and most in given:
            what = f"{least} {low} is more than {most} {high}; raise one or lower the other"
            mistakes.append(Mistake(document.where(("protocol", least)), what))
        else:  # only one was given: the preset's other one follows it
            protocol = replace(protocol, **({most: low} if least in given else {least: high}))
    return protocol, mistakes


def _origins(
    document: Document, axes: Mapping[str, Any], fixed: Mapping[str, Any], workloads: Mapping[str, str]
) -> dict[str, str]:
    in_axes = {name: str(document.where(("axes", name))) for name in axes}
    in_fixed = {name: str(document.where(("fixed", name))) for name in fixed}
    return {**workloads, **in_fixed, **in_axes}
