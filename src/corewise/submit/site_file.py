"""The site file: what a cluster needs in every job. Reading one reports all mistakes together, each with its line.

Its lines become part of batch scripts and run as the user, so only a file that nobody else can change is used.
"""

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from corewise.errors import UserError, suggest_nearest
from corewise.study.syntax.yaml_lines import Document, Mistake, build_mistakes_error, read_yaml
from corewise.trusted_paths import explain_distrust

# The site that is used without --site, if the file has one of this name.
DEFAULT_SITE = "default"
# Seconds between two questions to the scheduler. Many sites ask their users for at most one per minute.
QUERY_EVERY_S = 60.0
_OWN_TEXT = "corewise"
_EMPTY_HINT = "name a site and its settings, for example `default: {partition: cpu}`"


@dataclass(frozen=True, kw_only=True)
class Site:
    """The settings of a cluster for every job.

    Attributes:
        modules: Environment modules to load, in this order.
        container: The beginning of the command that runs Corewise in a container.
        environment: Shell lines that the job runs before Corewise.
        scratch: A folder for temporary files on the compute node.
        python: The interpreter in the job; that of the submitting process if empty.
        sbatch_options: Further options of sbatch; they override those that Corewise writes.
        query_every_s: Seconds between two questions to the scheduler.
        is_exclusive: Whether a job gets whole nodes, so that no other job disturbs its measurements.
        allow_local_store: Whether a store below /tmp is accepted, as on a cluster of one machine.
    """

    name: str = ""
    partition: str = ""
    account: str = ""
    constraint: str = ""
    qos: str = ""
    modules: tuple[str, ...] = ()
    container: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    scratch: str = ""
    python: str = ""
    sbatch_options: tuple[str, ...] = ()
    query_every_s: float = QUERY_EVERY_S
    is_exclusive: bool = True
    allow_local_store: bool = False


def find_site_file() -> Path:
    """Return the path of the user's site file, which need not exist."""
    base = os.environ.get("XDG_CONFIG_HOME")
    try:
        return (Path(base) if base else Path.home() / ".config") / "corewise" / "sites.yaml"
    except RuntimeError:
        raise UserError("there is no home folder for the site file: set XDG_CONFIG_HOME to a folder") from None


def load_site(name: str | None, path: Path | None = None) -> Site:
    """Read a site from the site file.

    Args:
        name: The site; without it, the site `default` if there is one.
        path: The site file; that of the user if missing.

    Raises:
        UserError: lists all mistakes, each with its line, or says who else could change the file.
    """
    path = path or find_site_file()
    if not os.path.lexists(path):
        if name is None:
            return Site()
        raise UserError(f"--site {name}: there is no site file {path}; create it, or leave out --site")
    problem = explain_distrust(path)
    if problem:
        raise UserError(f"the site file {path} is not used: {problem}. Let nobody but you write to it.")
    sites = _read_sites(read_yaml(path, _EMPTY_HINT))
    if name is None:
        return sites.get(DEFAULT_SITE, Site())
    if name not in sites:
        raise UserError(f"--site {name}: {path} has no such site; {suggest_nearest(name, sites)}")
    return sites[name]


def _read_sites(document: Document) -> dict[str, Site]:
    if not isinstance(document.value, dict):
        raise UserError(f"{document.find_origin(())}: a site file consists of sites, each with its settings")
    mistakes, sites = list(document.mistakes), {}
    for name, settings in document.value.items():
        try:
            sites[str(name)] = _build_site(str(name), SiteSection.model_validate(settings if settings else {}))
        except ValidationError as error:
            for item in error.errors(include_url=False):
                origin = document.find_origin((name, *item["loc"]))
                mistakes.append(Mistake(origin, _explain(item)))
    if mistakes:
        raise build_mistakes_error(mistakes)
    return sites


def _build_site(name: str, section: "SiteSection") -> Site:
    return Site(
        name=name,
        partition=section.partition,
        account=section.account,
        constraint=section.constraint,
        qos=section.qos,
        modules=tuple(section.modules),
        container=tuple(section.container),
        environment=tuple(section.environment),
        scratch=section.scratch,
        python=section.python,
        sbatch_options=tuple(section.sbatch_options),
        query_every_s=section.query_every_s,
        is_exclusive=section.exclusive,
        allow_local_store=section.allow_local_store,
    )


def _fail(text: str) -> PydanticCustomError:
    return PydanticCustomError(_OWN_TEXT, "{text}", {"text": text})


def check_option_value(value: str) -> str:
    """Return the value of an sbatch option unchanged; ValueError if it could become a second option or line."""
    if value and not re.fullmatch(r"[A-Za-z0-9_.,:&|*()@%+=/\[\]-]+", value):
        raise ValueError(f"{value!r} contains characters that sbatch does not take in a name")
    return value


def _check_option(value: str) -> str:
    try:
        return check_option_value(value)
    except ValueError as error:
        raise _fail(str(error)) from None


def _check_line(value: str) -> str:
    if "\n" in value or "\r" in value:
        raise _fail("a line must not contain a line break; write one entry per line")
    return value


def _check_sbatch_option(value: str) -> str:
    if not re.match(r"--?[A-Za-z]", _check_line(value)):
        raise _fail(f"{value!r} is not an option of sbatch; write it as --name=value")
    return value


def _check_module(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.+/@:=-]+", value):
        raise _fail(f"{value!r} is not the name of a module")
    return value


def _check_folder(value: str) -> str:
    if value and not _check_line(value).startswith(("/", "$")):
        raise _fail(f"{value!r} is not an absolute path")
    return value


def _split_command(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return shlex.split(value)
        except ValueError as error:
            raise _fail(f"container cannot be split into arguments: {error}") from None
    return value


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


OptionValue = Annotated[str, AfterValidator(_check_option)]


class SiteSection(BaseModel):
    """The schema of one site."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    partition: OptionValue = ""
    account: OptionValue = ""
    constraint: OptionValue = ""
    qos: OptionValue = ""
    modules: Annotated[list[Annotated[str, AfterValidator(_check_module)]], BeforeValidator(_as_list)] = []
    container: Annotated[list[str], BeforeValidator(_split_command)] = []
    environment: Annotated[list[Annotated[str, AfterValidator(_check_line)]], BeforeValidator(_as_list)] = []
    scratch: Annotated[str, AfterValidator(_check_folder)] = ""
    python: Annotated[str, AfterValidator(_check_line)] = ""
    sbatch_options: Annotated[
        list[Annotated[str, AfterValidator(_check_sbatch_option)]], BeforeValidator(_as_list)
    ] = []
    query_every_s: Annotated[float, Field(ge=1, le=86_400, allow_inf_nan=False)] = QUERY_EVERY_S
    exclusive: bool = True
    allow_local_store: bool = False


_EXPECTED: Mapping[str, str] = {
    "string_type": "needs a text",
    "float_type": "needs a number",
    "bool_type": "needs true or false",
    "list_type": "needs a list",
    "model_type": "needs `name: value` lines",
}


def _explain(item: ErrorDetails) -> str:
    name = ".".join(str(part) for part in item["loc"] if isinstance(part, str))
    if item["type"] == _OWN_TEXT:
        return f"{name}: {item['msg']}"
    if item["type"] == "extra_forbidden":
        return f"unknown setting {name!r} of a site; {suggest_nearest(name, SiteSection.model_fields)}"
    expected = _EXPECTED.get(item["type"], item["msg"].replace("Input should be", "must be"))
    return f"{name or 'a site'}: {expected}, not {item['input']!r:.60}"
