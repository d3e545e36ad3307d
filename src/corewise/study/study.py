"""The study: a question as a file. Reading one reports all mistakes together, each with its line."""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from corewise.errors import UserError, suggest_nearest
from corewise.measured.probes.counter_names import COUNTER_CHOICES
from corewise.measured.trial import Protocol
from corewise.study.axes import AXES, MODES, RUNTIMES, AxisValue
from corewise.study.built_in_studies import find_study, find_study_name
from corewise.study.built_in_studies import list_studies as list_studies
from corewise.study.command_line_overrides import apply_overrides
from corewise.study.study_sections import SectionReader
from corewise.study.syntax.expressions import Expression
from corewise.study.syntax.yaml_lines import Document, Mistake, build_mistakes_error, read_yaml

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
# Variables that a trial sets from its parameters; setting them by hand would falsify its record.
AXES_OF_VARIABLES = {
    "OMP_NUM_THREADS": "threads",
    "MKL_NUM_THREADS": "threads",
    "OPENBLAS_NUM_THREADS": "threads",
    "PJRT_NPROC": "threads",
    "TF_NUM_INTRAOP_THREADS": "threads",
    "TF_NUM_INTEROP_THREADS": "interop_threads",
    "TF_ENABLE_ONEDNN_OPTS": "math",
    "JAX_PLATFORMS": "device",
    "ATEN_CPU_CAPABILITY": "isa",
    "ONEDNN_MAX_CPU_ISA": "isa",
    "DNNL_MAX_CPU_ISA": "isa",
    "MKL_ENABLE_INSTRUCTIONS": "isa",
    "TORCHINDUCTOR_CPP_MARCH": "isa",
    "OMP_WAIT_POLICY": "wait_policy",
    "LD_PRELOAD": "allocator or openmp",
}


# The pydantic error type of messages that are complete and shown unchanged.
_OWN_TEXT = "corewise"


@dataclass(frozen=True)
class Constraint:
    """A condition that every point of the study must meet, and where it was written."""

    condition: Expression
    origin: str


@dataclass(frozen=True)
class Study:
    """A checked study; its paths are absolute.

    `origins` maps an axis or workload to the place where it was written. `excluded_workloads` are the
    workloads of the file that `--set workload` did not select.
    """

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
    origins: Mapping[str, str] = field(default_factory=dict)
    excluded_workloads: tuple[str, ...] = ()

    def find_origin(self, name: str) -> str:
        """Return the file and line (or the `--set` option) that gave an axis or a workload."""
        return self.origins.get(name, str(self.path))


def load_study(path_or_name: str | Path, overrides: Sequence[str] = ()) -> Study:
    """Read a study from a file or by its built-in name.

    Args:
        path_or_name: the path of a study file, or the name of a built-in study.
        overrides: `NAME=V1,V2` texts of `--set`, which replace values of the file.

    Raises:
        UserError: lists all mistakes, each with its line.
    """
    path = find_study(path_or_name)
    document = read_yaml(path)
    if not isinstance(document.value, dict):
        type_name = type(document.value).__name__
        raise UserError(f"{document.find_origin(())}: a study consists of `key: value` lines, not a {type_name}")
    listed = _as_list(document.value.get("workload"))
    document = apply_overrides(document, overrides)
    reader = SectionReader(document, path.parent)
    axes, fixed = reader.read_axes(), reader.read_fixed()
    reader.check_consistency(axes, fixed)
    constraints, workloads = reader.read_constraints(), reader.read_workloads()
    model, model_mistakes = _read_model(document)
    protocol, protocol_mistakes = _build_protocol(document, model)
    mistakes = [*document.mistakes, *reader.mistakes, *model_mistakes, *protocol_mistakes]
    if mistakes or model is None:
        raise build_mistakes_error(mistakes)
    python = model.python
    if python is not None and "/" in python:
        python = reader.resolve_path(python, ("python",))
    return Study(
        name=find_study_name(path),
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
        origins=_collect_origins(document, axes, fixed, workloads),
        excluded_workloads=_find_excluded(listed, model.workload),
    )


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list) or value is None else [value]


def _find_excluded(listed: Any, chosen: Sequence[str]) -> tuple[str, ...]:
    """Return the file's workloads that `--set` did not select; none if it named other workloads."""
    names = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
    return tuple(name for name in names if name not in chosen) if set(chosen) <= set(names) else ()


def _replace_none(value: Any) -> Any:
    return {} if value is None else value


def _require_choice(name: str, choices: Sequence[str]) -> AfterValidator:
    def check(value: str) -> str:
        if value not in choices:
            hint = suggest_nearest(value, choices)
            raise PydanticCustomError(_OWN_TEXT, "{text}", {"text": f"unknown {name} {value!r}; {hint}"})
        return value

    return AfterValidator(check)


def explain_unknown_runtime(name: str) -> str:
    """Return why there is no such runtime, with the nearest name; empty if there is one."""
    # Runtimes of other packages are looked up only when needed, because that takes time.
    if name in RUNTIMES:
        return ""
    known = _list_runtimes()
    return "" if name in known else f"unknown runtime {name!r}; {suggest_nearest(name, known)}"


@cache
def _list_runtimes() -> Sequence[str]:
    """List all runtimes once, because a file may name very many."""
    from corewise.measured.runtimes.registry import list_runtimes

    return list_runtimes()


def _check_runtime(name: str) -> str:
    problem = explain_unknown_runtime(name)
    if problem:
        raise PydanticCustomError(_OWN_TEXT, "{text}", {"text": problem})
    return name


def _wrap_check(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wrap a check so that pydantic reports the text of its ValueError unchanged."""

    def run_check(value: Any) -> Any:
        try:
            return check(value)
        except ValueError as error:
            raise PydanticCustomError(_OWN_TEXT, "{text}", {"text": str(error)}) from None

    return run_check


def _split_prefix(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return shlex.split(value)
        except ValueError as error:
            raise ValueError(f"prefix cannot be split into arguments: {error}") from None
    return [] if value is None else value


def _check_variable_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError(f"{name!r} is not a valid name of an environment variable")
    if name in AXES_OF_VARIABLES:
        raise ValueError(f"{name} is set by the trial; use the axis {AXES_OF_VARIABLES[name]}")
    return name


def _read_variable_value(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"an environment variable needs a text, not {value!r:.60}; put it in quotes")
    return str(value)


def _expand_preset(value: Any) -> Any:
    return {"preset": value} if isinstance(value, str) else _replace_none(value)


Count = Annotated[int, Field(ge=1, le=1_000_000)]
Seconds = Annotated[float, Field(gt=0, le=1e7, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]
VariableName = Annotated[str, AfterValidator(_wrap_check(_check_variable_name))]
VariableValue = Annotated[str, BeforeValidator(_wrap_check(_read_variable_value))]


class _FileModel(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ProtocolFile(_FileModel):
    """The `protocol` section: a preset and the fields that differ from it."""

    preset: Annotated[str, _require_choice("preset", tuple(PRESETS))] = "normal"
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
    start: Annotated[str, _require_choice("start", ("fork", "fresh"))] | None = None
    counters: Annotated[str, _require_choice("counters", COUNTER_CHOICES)] | None = None


class StudyFile(_FileModel):
    """The schema of a study file."""

    question: str = ""
    workload: Annotated[list[str], BeforeValidator(_as_list), Field(min_length=1)]
    mode: Annotated[
        list[Annotated[str, _require_choice("mode", MODES)]], BeforeValidator(_as_list), Field(min_length=1)
    ] = ["infer"]
    runtime: Annotated[
        list[Annotated[str, AfterValidator(_check_runtime)]], BeforeValidator(_as_list), Field(min_length=1)
    ] = ["torch"]
    python: Annotated[str, Field(min_length=1)] | None = None
    prefix: Annotated[list[str], BeforeValidator(_wrap_check(_split_prefix))] = []
    axes: Annotated[dict[str, Any], BeforeValidator(_replace_none)] = {}
    fixed: Annotated[dict[str, Any], BeforeValidator(_replace_none)] = {}
    constraints: Annotated[list[str], BeforeValidator(lambda v: _as_list(v) or [])] = []
    protocol: Annotated[ProtocolFile, BeforeValidator(_expand_preset)] = ProtocolFile()
    environment: Annotated[dict[VariableName, VariableValue], BeforeValidator(_replace_none)] = {}


def _read_model(document: Document) -> tuple[StudyFile | None, list[Mistake]]:
    try:
        return StudyFile.model_validate(document.value), []
    except ValidationError as error:
        details = error.errors(include_url=False)
        return None, [Mistake(document.find_origin(item["loc"]), _explain(item)) for item in details]


_EXPECTED = {
    "string_type": "needs a text",
    "int_type": "needs a whole number",
    "float_type": "needs a number",
    "list_type": "needs a value or a list",
    "dict_type": "needs `name: value` lines",
    "model_type": "needs `name: value` lines",
}


def _explain(item: ErrorDetails) -> str:
    name = ".".join(str(part) for part in item["loc"] if isinstance(part, str))
    if item["type"] == _OWN_TEXT:
        return item["msg"]
    if item["type"] == "missing":
        return f"{name} is missing; name what to measure, for example `workload: resnet50`"
    if item["type"] == "extra_forbidden":
        return _explain_unknown(name)
    if item["type"] == "too_short":
        return f"{name} is empty; give it a value"
    expected = _EXPECTED.get(item["type"], item["msg"].replace("Input should be", "must be"))
    return f"{name}: {expected}, not {item['input']!r:.60}"


def _explain_unknown(name: str) -> str:
    section, _, field_name = name.rpartition(".")
    if section == "protocol":
        return f"unknown protocol field {field_name!r}; {suggest_nearest(field_name, ProtocolFile.model_fields)}"
    if name in AXES or name.startswith("args."):
        return f"unknown key {name!r}; {name} is an axis: put it under `axes:` or `fixed:`"
    return f"unknown key {name!r}; {suggest_nearest(name, StudyFile.model_fields)}"


def _build_protocol(document: Document, model: StudyFile | None) -> tuple[Protocol, list[Mistake]]:
    """Return the protocol; contradicting minimum and maximum values are a mistake."""
    if model is None:
        return Protocol(), []
    given = model.protocol.model_dump(exclude={"preset"}, exclude_none=True)
    protocol = replace(PRESETS[model.protocol.preset], **given)
    mistakes = []
    for minimum, maximum in (("min_runs", "max_runs"), ("min_samples", "max_samples")):
        low, high = getattr(protocol, minimum), getattr(protocol, maximum)
        if low <= high:
            continue
        if minimum in given and maximum in given:
            message = f"{minimum} {low} is more than {maximum} {high}; change one of them"
            mistakes.append(Mistake(document.find_origin(("protocol", minimum)), message))
        else:
            # Only one of the two was given, so the preset's other value follows it.
            protocol = replace(protocol, **({maximum: low} if minimum in given else {minimum: high}))
    return protocol, mistakes


def _collect_origins(
    document: Document, axes: Mapping[str, Any], fixed: Mapping[str, Any], workloads: Mapping[str, str]
) -> dict[str, str]:
    in_axes = {name: str(document.find_origin(("axes", name))) for name in axes}
    in_fixed = {name: str(document.find_origin(("fixed", name))) for name in fixed}
    return {**workloads, **in_fixed, **in_axes}
