"""Reads published figures from YAML files; every mistake is reported with its line."""

from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from corewise.errors import UserError, suggest_nearest
from corewise.study.syntax.yaml_lines import Mistake, build_mistakes_error, read_yaml

SUFFIXES = (".yaml", ".yml")
Name = Annotated[str, Field(min_length=1, max_length=300)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Quantity = Literal[
    "efficiency", "ratio", "share", "rate", "time", "bandwidth", "memory", "pixels", "batch", "shape", "assumption"
]


class _PublishedPart(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PublishedLine(_PublishedPart):
    """A published curve: one quantity along a parameter."""

    x: Annotated[list[Number | Name], Field(min_length=1)]
    y: Annotated[list[Number], Field(min_length=1)]
    # Empty: for no specific workload.
    workload: str = ""
    machine: str = ""
    setting: str = ""

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        if len(self.x) != len(self.y):
            raise ValueError(f"x has {len(self.x)} values and y has {len(self.y)}")
        return self


class PublishedValue(_PublishedPart):
    """One published figure: a value, a range, both, or a text."""

    value: Number | None = None
    low: Number | None = None
    high: Number | None = None
    text: str = ""
    workload: str = ""
    machine: str = ""
    setting: str = ""
    note: str = ""

    @model_validator(mode="after")
    def _check_content(self) -> Self:
        if self.value is None and self.low is None and self.high is None and not self.text:
            raise ValueError("give a value, low and high, or a text")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"low ({self.low:g}) is above high ({self.high:g})")
        return self


class GridSide(_PublishedPart):
    """One axis of a grid."""

    name: Name
    values: Annotated[list[Number], Field(min_length=1)]


class PublishedGrid(_PublishedPart):
    """One published quantity over two parameters."""

    rows: GridSide
    columns: GridSide
    cells: Annotated[list[list[Number]], Field(min_length=1)]

    @model_validator(mode="after")
    def _check_size(self) -> Self:
        if len(self.cells) != len(self.rows.values):
            raise ValueError(f"{len(self.rows.values)} rows are named, but {len(self.cells)} are given")
        for number, row in enumerate(self.cells, 1):
            if len(row) != len(self.columns.values):
                raise ValueError(f"row {number} has {len(row)} cells for {len(self.columns.values)} columns")
        return self


class Published(_PublishedPart):
    """One table or figure of a publication, and which results it may be compared with.

    `differs` says how the quantity differs from one's own; captions quote it. `x` names the parameter of
    lines. `axes` of the user's study must all vary.
    """

    key: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    what: Name
    where: str = ""
    quantity: Quantity
    unit: str = ""
    formula: str = ""
    differs: str = ""
    x: str = ""
    workloads: list[str] = []
    mode: Literal["", "train", "infer"] = ""
    axes: list[str] = []
    lines: list[PublishedLine] = []
    values: list[PublishedValue] = []
    grid: PublishedGrid | None = None

    @model_validator(mode="after")
    def _check_content(self) -> Self:
        if sum((bool(self.lines), bool(self.values), self.grid is not None)) != 1:
            raise ValueError("give one of lines, values and grid")
        if self.lines and not self.x:
            raise ValueError("name the parameter of the lines in x")
        return self


class Publication(_PublishedPart):
    """The content of one file: a publication and its figures."""

    title: Name
    authors: Annotated[list[Name], Field(min_length=1)]
    year: Annotated[int, Field(ge=1900, le=2200)]
    venue: str = ""
    link: str = ""
    protocol: str = ""
    machines: dict[str, str] = {}
    figures: Annotated[list[Published], Field(min_length=1)]

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        keys = [figure.key for figure in self.figures]
        twice = sorted({key for key in keys if keys.count(key) > 1})
        if twice:
            raise ValueError(f"two figures have the key {twice[0]!r}")
        return self

    @property
    def citation(self) -> str:
        """Authors, title and year, for captions."""
        who = self.authors[0] if len(self.authors) == 1 else f"{self.authors[0]} et al."
        return f"{who}, “{self.title}”, {self.year}"

    @property
    def short_citation(self) -> str:
        """First author and year."""
        names = [name for name in self.authors[0].split()[1:] if not name.endswith(".")]
        who = " ".join(names) or self.authors[0]
        return f"{who}{'' if len(self.authors) == 1 else ' et al.'} {self.year}"


def find_shipped_folder() -> Path:
    """Return the folder of the publications that come with Corewise."""
    return Path(str(resources.files("corewise"))) / "published"


def load_publications(folder: Path) -> tuple[Publication, ...]:
    """Load all publications of a folder in order of file names; raise UserError for a mistake."""
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise UserError(f"{folder} {what}: choose a folder of published figures with --published")
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES)
    except OSError as error:
        raise UserError(
            f"{folder} cannot be read: {error.strerror or error}; choose another folder with --published"
        ) from error
    if not paths:
        raise UserError(f"{folder} holds no .yaml file: choose a folder of published figures with --published")
    return tuple(load_publication(path) for path in paths)


def load_publication(path: Path) -> Publication:
    """Load one publication; raise UserError with the line of every mistake."""
    document = read_yaml(path)
    mistakes = list(document.mistakes)
    if not isinstance(document.value, dict):
        raise UserError(f"{path}:1: not a publication; start with `title: ...`")
    try:
        publication = Publication.model_validate(document.value)
    except ValidationError as error:
        details = error.errors(include_url=False)
        mistakes += [Mistake(document.find_origin(item["loc"]), _explain(item)) for item in details]
    if mistakes:
        raise build_mistakes_error(mistakes)
    return publication


def _explain(item: ErrorDetails) -> str:
    name = ".".join(str(part) for part in item["loc"] if isinstance(part, str)) or "the file"
    if item["type"] == "missing":
        return f"{name} is missing"
    if item["type"] == "extra_forbidden":
        last = str(item["loc"][-1])
        return f"unknown key {last!r}; {suggest_nearest(last, _list_known_keys(item['loc']))}"
    message = item["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    return f"{name}: {message}"


def _list_known_keys(loc: Sequence[int | str]) -> Iterator[str]:
    """Yield the keys that are valid at the place of an unknown one."""
    parts: dict[str, type[BaseModel]] = {
        "figures": Published, "lines": PublishedLine, "values": PublishedValue, "grid": PublishedGrid,
        "rows": GridSide, "columns": GridSide,
    }  # fmt: skip
    inside = [part for part in loc[:-1] if isinstance(part, str)]
    yield from (parts[inside[-1]] if inside and inside[-1] in parts else Publication).model_fields


def is_comparable(published: Published, workload: str, mode: str, varying: Sequence[str]) -> bool:
    """Return True if a published figure may be compared with a group of trials."""
    names = [*published.workloads, *(line.workload for line in published.lines)]
    names = [name for name in (*names, *(value.workload for value in published.values)) if name]
    if names and workload not in names:
        return False
    if published.mode and published.mode != mode:
        return False
    return all(name in varying for name in published.axes)
