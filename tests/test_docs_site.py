"""The documents: links lead somewhere, sentences stay short, and the site has every page and builds."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = (
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "benchmarks").glob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
)
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def read_prose(document: Path) -> str:
    """The text of a document without its fenced blocks."""
    return FENCE.sub("", document.read_text())


def list_anchors(document: Path) -> Iterator[str]:
    """The anchors of a document's headings, as GitHub and the site form them."""
    for heading in re.findall(r"^#+ (.+)$", read_prose(document), re.MULTILINE):
        yield re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_to_a_file_and_a_heading(document: Path) -> None:
    for target in LINK.findall(read_prose(document)):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        path = document.parent / file if file else document
        assert path.exists(), f"{document.name} links to {target}"
        assert not anchor or anchor in set(list_anchors(path)), f"{document.name} links to {target}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_no_two_headings_of_a_document_share_an_anchor(document: Path) -> None:
    anchors = list(list_anchors(document))
    assert sorted(set(anchors)) == sorted(anchors)


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    named = re.findall(r"^ +- .+: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    hooks = (ROOT / "mkdocs_hooks.py").read_text()
    outside = re.findall(r'^    "(\S+\.md)": "\S+\.md",$', hooks, re.MULTILINE)
    assert sorted(named) == sorted([*outside, *(path.name for path in (ROOT / "docs").glob("*.md"))])


@pytest.mark.slow
def test_the_site_builds_without_warnings_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="pip install '.[docs]'")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    pages = list(tmp_path.glob("*.html"))
    assert len(pages) > len(list((ROOT / "docs").glob("*.md")))
    for page in pages:
        loaded = re.findall(r'<(?:script|link|img|iframe)\b[^>]*(?:src|href)="(https?:[^"]+)"', page.read_text())
        assert loaded == [], page.name
