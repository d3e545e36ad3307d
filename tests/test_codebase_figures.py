"""The figures of benchmarks/codebase_figures.py, and the limits that the documents keep."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

from codebase_figures import (
    count_retired_words,
    count_words,
    find_cyclic_packages,
    measure_code,
    measure_page,
    split_sentences,
)

PAGE = """# A heading is not counted

One sentence has five words. Another one, e.g. with `a code span`, has seven.
It goes over
two lines.

- An item without a full stop
- 2 items

| a | table |
|---|---|

```sh
not counted.
```
"""


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda path: path.name
)
def test_sentences_of_the_documents_are_short(page: Path) -> None:
    figure = measure_page(page)
    assert figure.is_kept, figure.value


def test_sentences_are_found_in_paragraphs_and_lists_only() -> None:
    lengths = [count_words(sentence) for sentence in split_sentences(PAGE)]
    assert lengths == [5, 7, 5, 6, 2]


def test_a_cycle_of_packages_is_found_through_others() -> None:
    imports = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a", "d"}}
    assert find_cyclic_packages(imports) == ["b", "c"]


def test_names_classes_and_imports_of_sources_are_counted(tmp_path: Path) -> None:
    for package, text in {
        "one": "class Plan: ...\ndef read_plan(): ...\ndef plans(): ...\n",
        "two": "class Plan: ...\ndef f():\n    from corewise.one import x\n",
        "three": "@property\ndef size(self): ...\ndef __len__(self): ...\ndef get_size(): ...\n",
    }.items():
        (tmp_path / package).mkdir()
        (tmp_path / package / "module.py").write_text(text)
    figures = {figure.name: figure for figure in measure_code(tmp_path)}
    assert figures["function names that start with a verb"].value == "50% of 4"
    assert figures["function names that start with get_, do_ or make_"].value == "25%"
    assert figures["public class names used twice"].value == "1 Plan"
    assert figures["packages in an import cycle"].value == "none"
    assert figures["lines of source"].value == "10 in 3 files"


def test_retired_words_are_counted_as_whole_words_in_every_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codebase_figures.RETIRED_WORDS", ("thou", "red car", "hither"))
    for folder, name, text in (
        ("src", "kernel.cpp", "// Thou shalt not count a thousand."),
        ("tests", "test_a.py", '"""A red car and a red cart."""'),
        ("src", "data.bin", "hither"),
    ):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / name).write_text(text)
    assert count_retired_words(tmp_path) == {"thou": 1, "red car": 1, "hither": 0}
