"""Figures that were published, read from files that people write: whole and checked, or refused by line."""

from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from corewise.spec.errors import UserError, nearest
from corewise.spec.yaml_lines import Mistake, mistakes_error, read_yaml

SUFFIXES = (".yaml", ".yml")
Name = Annotated[str, Field(min_length=1, max_length=300)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Quantity = Literal[
    "efficiency",
    "ratio",
    "share",
    "rate",
    "time",
    "bandwidth",
    "memory",
    "pixels",
    "batch",
    "shape",
    "assumption",
]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Line(_Part):
    """One figure along a parameter: a curve."""

    x: Annotated[list[Number | Name], Field(min_length=1)]
    y: Annotated[list[Number], Field(min_length=1)]
    workload: str = ""  # empty: of no one workload
    machine: str = ""
    setting: str = ""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if len(self.x) != len(self.y):
            raise ValueError(f"x has {len(self.x)} values and y has {len(self.y)}")
        return self


class Value(_Part):
    """One figure: a value, a range, both, or words."""

    value: Number | None = None
    low: Number | None = None
    high: Number | None = None
    text: str = ""
    workload: str = ""
    machine: str = ""
    setting: str = ""
    note: str = ""

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.value is None and self.low is None and self.high is None and not self.text:
            raise ValueError("give a value, low and high, or a text")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"low ({self.low:g}) is above high ({self.high:g})")
        return self


class Side(_Part):
    """One side of a grid."""

    name: Name
    values: Annotated[list[Number], Field(min_length=1)]


class Grid(_Part):
    """A figure over two parameters."""

    rows: Side
    columns: Side
    cells: Annotated[list[list[Number]], Field(min_length=1)]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if len(self.cells) != len(self.rows.values):
            raise ValueError(f"{len(self.rows.values)} rows are named and {len(self.cells)} given")
        for number, row in enumerate(self.cells, 1):
            if len(row) != len(self.columns.values):
                raise ValueError(f"row {number} has {len(row)} cells for {len(self.columns.values)} columns")
        return self


class Published(_Part):
    """One table or figure of a publication, and beside which of one's own figures it may stand."""

    key: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    what: Name
    where: str = ""
    quantity: Quantity
    unit: str = ""
    formula: str = ""
    differs: str = ""  # what sets it apart from one's own figure of the kind; captions say so
    x: str = ""  # what a line runs along
    workloads: list[str] = []
    mode: Literal["", "train", "infer"] = ""
    axes: list[str] = []  # of one's own study: all must vary
    lines: list[Line] = []
    values: list[Value] = []
    grid: Grid | None = None

    @model_validator(mode="after")
    def _has_one_kind(self) -> Self:
        if sum((bool(self.lines), bool(self.values), self.grid is not None)) != 1:
            raise ValueError("give one of lines, values and grid")
        if self.lines and not self.x:
            raise ValueError("say in x what the lines run along")
        return self


class Publication(_Part):
    """One file: who published what, and its figures."""

    title: Name
    authors: Annotated[list[Name], Field(min_length=1)]
    year: Annotated[int, Field(ge=1900, le=2200)]
    venue: str = ""
    link: str = ""
    protocol: str = ""
    machines: dict[str, str] = {}
    figures: Annotated[list[Published], Field(min_length=1)]

    @model_validator(mode="after")
    def _keys_differ(self) -> Self:
        keys = [figure.key for figure in self.figures]
        twice = sorted({key for key in keys if keys.count(key) > 1})
        if twice:
            raise ValueError(f"the key {twice[0]!r} is given to two figures")
        return self

    @property
    def citation(self) -> str:
        """Who, when and what, as a caption cites it."""
        who = self.authors[0] if len(self.authors) == 1 else f"{self.authors[0]} et al."
        return f"{who}, “{self.title}”, {self.year}"

    @property
    def short_citation(self) -> str:
        """Who and when."""
        words = [word for word in self.authors[0].split()[1:] if not word.endswith(".")]
        who = " ".join(words) or self.authors[0]
        return f"{who}{'' if len(self.authors) == 1 else ' et al.'} {self.year}"


def shipped_folder() -> Path:
    """Where the publications that come with Corewise lie."""
    return Path(str(resources.files("corewise"))) / "published"


def load_publications(folder: Path) -> tuple[Publication, ...]:
    """The publications of a folder, by file name; a mistake in one is the user's."""
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise UserError(f"{folder} {what}: name a folder of published figures with --published")
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES)
    except OSError as error:
        raise UserError(
            f"{folder} cannot be read: {error.strerror or error}; name another with --published"
        ) from error
    if not paths:
        raise UserError(f"{folder} holds no .yaml file: name a folder of published figures with --published")
    return tuple(load_publication(path) for path in paths)


def load_publication(path: Path) -> Publication:
    """The publication in one file."""
    document = read_yaml(path)
    mistakes = list(document.mistakes)
    if not isinstance(document.value, dict):
        raise UserError(f"{path}:1: not a publication; begin with `title: ...`")
    try:
        made = Publication.model_validate(document.value)
    except ValidationError as error:
        details = error.errors(include_url=False)
        mistakes += [Mistake(document.where(item["loc"]), _explain(item)) for item in details]
    if mistakes:
        raise mistakes_error(mistakes)
    return made


def _explain(item: ErrorDetails) -> str:
    name = ".".join(str(part) for part in item["loc"] if isinstance(part, str)) or "the file"
    if item["type"] == "missing":
        return f"{name} is missing"
    if item["type"] == "extra_forbidden":
        last = str(item["loc"][-1])
        return f"unknown key {last!r}; {nearest(last, _known(item['loc']))}"
    told = item["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    return f"{name}: {told}"


def _known(loc: Sequence[int | str]) -> Iterator[str]:
    """The keys that may stand where an unknown one does."""
    parts: dict[str, type[BaseModel]] = {
        "figures": Published, "lines": Line, "values": Value, "grid": Grid, "rows": Side, "columns": Side,
    }  # fmt: skip
    inside = [part for part in loc[:-1] if isinstance(part, str)]
    yield from (parts[inside[-1]] if inside and inside[-1] in parts else Publication).model_fields


def matching(published: Published, workload: str, mode: str, varying: Sequence[str]) -> bool:
    """True when a published figure may stand beside a group of one's own trials."""
    names = [*published.workloads, *(line.workload for line in published.lines)]
    names = [name for name in (*names, *(value.workload for value in published.values)) if name]
    if names and workload not in names:
        return False
    if published.mode and published.mode != mode:
        return False
    return all(name in varying for name in published.axes)
