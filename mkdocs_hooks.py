"""Add the documents from outside docs/ to the site, and adapt links.

Links are written as they work in the repository. Here each one is changed to the page of the site. A link to a file
that the site does not have becomes plain text.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent
OUTSIDE_PAGES = {
    "index.md": "README.md",
    "architecture.md": "ARCHITECTURE.md",
    "results.md": "benchmarks/RESULTS.md",
    "benchmarks.md": "benchmarks/README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
}
TEXT_LINK = re.compile(r"(?<!!)\[([^\[\]]*)\]\(([^)\s#]+)(?:#[^)\s]*)?\)")
TARGET = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for page, source in OUTSIDE_PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    source = OUTSIDE_PAGES.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def drop_foreign_link(match: re.Match[str]) -> str:
        path = resolve_target(source, match[2])
        return match[1] if (ROOT / path).exists() and find_page(path) is None else match[0]

    def rewrite_target(match: re.Match[str]) -> str:
        found = find_page(resolve_target(source, match[1]))
        return f"]({found}{match[2] or ''})" if found else match[0]

    return TARGET.sub(rewrite_target, TEXT_LINK.sub(drop_foreign_link, markdown))


def resolve_target(source: str, target: str) -> str:
    """Return the path in the repository that a link of a document leads to."""
    return os.path.normpath(os.path.join(os.path.dirname(source), target))


def find_page(path: str) -> str | None:
    """Return the site's name for a file of the repository, or None if the site does not have it."""
    for page, outside in OUTSIDE_PAGES.items():
        if path == outside:
            return page
    return path.removeprefix("docs/") if path.startswith("docs/") and (ROOT / path).exists() else None
