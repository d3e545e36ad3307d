"""The studies that come with Corewise, and how a study is found by name or path."""

from importlib import resources
from pathlib import Path
from typing import NamedTuple

from corewise.spec.errors import UserError, nearest
from corewise.spec.yaml_lines import read_yaml

SUFFIXES = (".yaml", ".yml")


class ListedStudy(NamedTuple):
    """One ready-made study."""

    name: str
    question: str
    path: Path


def list_studies() -> tuple[ListedStudy, ...]:
    """The ready-made studies, by name."""
    return tuple(
        ListedStudy(name, " ".join(str(read_yaml(path).value["question"]).split()), path)
        for name, path in _shipped().items()
    )


def locate_study(path_or_name: str | Path) -> Path:
    """The file a path or the name of a ready-made study means; a UserError when there is none."""
    text = str(path_or_name)
    shipped = _shipped()
    if text in shipped:
        return shipped[text]
    if "/" not in text and not text.endswith(SUFFIXES):
        here, any_file = (
            f"for the file here, write ./{text}",
            "a file of yours: by its path, as in ./mine.yaml",
        )
        file = here if Path(text).is_file() else any_file
        raise UserError(f"no ready-made study {text!r}; {_hint(text, shipped)} ({file})")
    path = Path(text).expanduser()
    if not path.exists():
        named = [name for name in shipped if name.rpartition("/")[2] == path.stem]
        ready_made = f"; the ready-made study is called {named[0]}" if named else ""
        raise UserError(f"{text}: no such file; check the path, or run `corewise list`{ready_made}")
    if not path.is_file():
        raise UserError(f"{text}: not a file; give the path of a study file")
    return path


def study_name(path: Path) -> str:
    """The name of the study in a file: that of a ready-made one, or of the file."""
    return next((name for name, file in _shipped().items() if file == path), path.stem)


def _shipped() -> dict[str, Path]:
    """The ready-made studies by name, those in a folder with it: papers/dynamic-threads."""
    folder = Path(str(resources.files("corewise"))) / "studies"
    found = {path.relative_to(folder).with_suffix("").as_posix(): path for path in folder.rglob("*.yaml")}
    return dict(sorted(found.items(), key=lambda pair: ("/" in pair[0], pair[0])))


def _hint(text: str, shipped: dict[str, Path]) -> str:
    hint = nearest(text, shipped)
    return hint if hint.startswith("known") else f"{hint} known: {', '.join(sorted(shipped))}"
