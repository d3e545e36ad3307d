"""The built-in studies that ship with Corewise, and the lookup of a study by name or path."""

from importlib import resources
from pathlib import Path
from typing import NamedTuple

from corewise.errors import UserError, suggest_nearest
from corewise.study.syntax.yaml_lines import read_yaml

SUFFIXES = (".yaml", ".yml")


class ListedStudy(NamedTuple):
    """One built-in study."""

    name: str
    question: str
    path: Path


def list_studies() -> tuple[ListedStudy, ...]:
    """Return the built-in studies, sorted by name."""
    return tuple(
        ListedStudy(name, " ".join(str(read_yaml(path).value["question"]).split()), path)
        for name, path in _find_shipped().items()
    )


def find_study(path_or_name: str | Path) -> Path:
    """Return the file of a path or of a built-in study's name, or raise UserError."""
    text = str(path_or_name)
    shipped = _find_shipped()
    if text in shipped:
        return shipped[text]
    if "/" not in text and not text.endswith(SUFFIXES):
        is_file = Path(text).is_file()
        remedy = f"for the file {text}, write ./{text}" if is_file else "give your own file as a path: ./my.yaml"
        raise UserError(f"no built-in study {text!r}; {_suggest_names(text, shipped)} ({remedy})")
    path = Path(text).expanduser()
    if not path.exists():
        named = [name for name in shipped if name.rpartition("/")[2] == path.stem]
        built_in = f"; the built-in study is called {named[0]}" if named else ""
        raise UserError(f"{text}: no such file; check the path, or run `corewise list`{built_in}")
    if not path.is_file():
        raise UserError(f"{text}: not a file; give the path of a study file")
    return path


def find_study_name(path: Path) -> str:
    """Return the built-in study's name for its file, or the stem of any other file."""
    return next((name for name, file in _find_shipped().items() if file == path), path.stem)


def _find_shipped() -> dict[str, Path]:
    """Return the built-in studies by name; a name includes its folder: papers/dynamic-threads."""
    folder = Path(str(resources.files("corewise"))) / "studies"
    studies = {path.relative_to(folder).with_suffix("").as_posix(): path for path in folder.rglob("*.yaml")}
    return dict(sorted(studies.items(), key=lambda pair: ("/" in pair[0], pair[0])))


def _suggest_names(text: str, shipped: dict[str, Path]) -> str:
    hint = suggest_nearest(text, shipped)
    return hint if hint.startswith("known") else f"{hint} known: {', '.join(sorted(shipped))}"
