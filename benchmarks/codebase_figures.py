"""Print figures about the code and its documents, and exit with 1 when one misses its limit."""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MIN_VERB_SHARE = 0.85
MAX_FILES_PER_FOLDER = 20
MAX_DUPLICATED_CLASSES = 3
MAX_RETIRED_WORDS = 0
MAX_AVERAGE_WORDS = 20
MAX_SENTENCE_WORDS = 35

BLAND_VERBS = ("get", "do", "make")
# First words that make a function name read as an action or as a question with a yes or no answer.
VERB_LIST = """
    add adopt advise aggregate allocate allow announce append apply as ask assert assign attach await
    backward bind bound build cache calculate call can cancel canonicalize capture check choose claim
    classify clean clear close collect combine compare compile compute confirm connect contains convert copy
    correct count create cut decide declare decode define delete derive describe detach detect differs
    discover divide draw drop dump emit encode end ensure enter estimate evaluate exclude execute exit
    expand explain export extend extract fail fetch fill filter find finish fit flatten fold follow force
    format forward free freeze from fuse gather generate get give group guess handle has hash have hold
    identify import include index infer inject insert install interpolate intersect invoke is iterate join
    judge keep kill label launch lay leave limit link list load locate lock log look lower make map mark
    match measure merge migrate model move must name need next normalize note notify observe open order pack
    pad parse partition patch pick pin place plan plot poll pop prepare preview print probe process produce
    profile propose prove provide prune pull push put quantize query quote raise rank read receive record
    reduce refuse register reject release remember remove rename render repeat replace replay report request
    require reserve reset resolve restore resume retry return rewrite round run sample save scale scan
    schedule search seed select send separate serve set setup share should show shrink shuffle simulate skip
    sleep slice solve sort spawn split start stop store stream strip submit suggest sum summarize supervise
    supports suspend switch sync take tear terminate test time to trace track train transform transpose trim
    try tune turn unpack update use uses validate verify visit wait wake walk warm warn was watch weigh will
    wrap write yield
"""
VERBS = frozenset(VERB_LIST.split())
RETIRED_WORDS = (
    *("told", "tell apart", "mend", "mended", "anew", "goes on", "gravest", "yeses", "comings", "heard"),
    "by Winograd's way",
)
TEXT_SUFFIXES = frozenset(
    (".py", ".md", ".yaml", ".yml", ".js", ".css", ".html", ".j2", ".jinja", ".h", ".hpp", ".cpp", ".c", ".sh")
)
TEXT_FOLDERS = ("src", "tests", "docs", "benchmarks", "studies")

FENCE = re.compile(r"^( *)(```|~~~).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
LIST_ITEM = re.compile(r"^\s*(?:[-*+]|\d+\.)\s+")
# A sentence ends at . ! or ? before a space and the start of the next sentence, but not after "e.g.".
SENTENCE_END = re.compile(r"(?<!\be\.g)(?<!\bi\.e)(?<!\bvs)[.!?][)\"”*]*\s+(?=[*_\"“(\[`]*[A-Z0-9`…])")


class Figure(NamedTuple):
    """One line of the output: a name, a value as text, and whether the value keeps its limit."""

    name: str
    value: str
    is_kept: bool = True


def measure_code(source: Path) -> Iterator[Figure]:
    """Measure names, folders, classes and package imports of the Python files under a source folder."""
    files = sorted(source.rglob("*.py"))
    first_words: list[str] = []
    classes: Counter[str] = Counter()
    imports: defaultdict[str, set[str]] = defaultdict(set)
    for file in files:
        package = file.relative_to(source).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _has_free_name(node):
                first_words.append(node.name.lstrip("_").split("_")[0])
            elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name] += 1
            imports[package] |= set(_list_imported_packages(node))
    verb_share = sum(word in VERBS for word in first_words) / len(first_words)
    bland_share = sum(word in BLAND_VERBS for word in first_words) / len(first_words)
    sizes = Counter(str(f.parent.relative_to(source)) for f in files if f.name != "__init__.py")
    large = {folder: size for folder, size in sizes.items() if size > MAX_FILES_PER_FOLDER}
    duplicated = sorted(name for name, count in classes.items() if count > 1)
    cyclic = find_cyclic_packages(imports)
    is_verbal = verb_share >= MIN_VERB_SHARE
    yield Figure("function names that start with a verb", f"{verb_share:.0%} of {len(first_words)}", is_verbal)
    yield Figure("function names that start with get_, do_ or make_", f"{bland_share:.0%}")
    yield Figure(f"folders with more than {MAX_FILES_PER_FOLDER} files", f"{large or 'none'}", not large)
    names = ", ".join(duplicated)
    yield Figure(
        "public class names used twice", f"{len(duplicated)} {names}", len(duplicated) <= MAX_DUPLICATED_CLASSES
    )
    yield Figure("packages in an import cycle", ", ".join(cyclic) or "none", not cyclic)
    num_lines = sum(f.read_text().count("\n") for f in files)
    yield Figure("lines of source", f"{num_lines} in {len(files)} files")


def _has_free_name(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether we chose the name and it names an action: no special method, property or overload."""
    decorators = " ".join(map(ast.unparse, function.decorator_list))
    return not function.name.startswith("__") and "property" not in decorators and "overload" not in decorators


def _list_imported_packages(node: ast.AST) -> list[str]:
    """List the top-level packages of corewise that an import statement names, at any depth of the file."""
    modules: list[str] = []
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        modules = [node.module]
    elif isinstance(node, ast.Import):
        modules = [alias.name for alias in node.names]
    return [module.split(".")[1] for module in modules if module.startswith("corewise.")]


def find_cyclic_packages(imports: dict[str, set[str]]) -> list[str]:
    """Return the packages that reach themselves through the imports of other packages."""

    def find_reachable(package: str) -> set[str]:
        reached: set[str] = set()
        waiting = list(imports.get(package, set()) - {package})
        while waiting:
            other = waiting.pop()
            if other not in reached:
                reached.add(other)
                waiting += imports.get(other, set()) - {other}
        return reached

    return sorted(package for package in list(imports) if package in find_reachable(package))


def count_retired_words(repository: Path) -> Counter[str]:
    """Count the retired words in source, tests, benchmarks and documents, this file excepted."""
    files = [p for folder in TEXT_FOLDERS for p in (repository / folder).rglob("*") if p.suffix in TEXT_SUFFIXES]
    files = [p for p in (*repository.glob("*.md"), *files) if p.name != Path(__file__).name]
    text = "\n".join(path.read_text(errors="ignore") for path in files)
    return Counter({word: len(re.findall(rf"\b{word}\b", text, re.IGNORECASE)) for word in RETIRED_WORDS})


def split_sentences(markdown: str) -> list[str]:
    """Return the sentences of a page; code blocks, tables, headings and comments are left out."""
    text = COMMENT.sub("", FENCE.sub("\n", markdown))
    paragraphs: list[list[str]] = [[]]
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith(("|", "#", "[![", "![", "---")):
            paragraphs.append([])
            continue
        if LIST_ITEM.match(line):
            paragraphs.append([])
        paragraphs[-1].append(LIST_ITEM.sub("", line).strip())
    joined = (" ".join(lines) for lines in paragraphs if lines)
    return [part.strip() for paragraph in joined for part in SENTENCE_END.split(paragraph) if part.strip()]


def count_words(sentence: str) -> int:
    """Count words; a code span or a link target counts as one word at most."""
    text = re.sub(r"\]\([^)]*\)", "", re.sub(r"`[^`]*`", "code", sentence))
    return len([word for word in text.split() if any(character.isalnum() for character in word)])


def measure_page(page: Path) -> Figure:
    """Measure the words per sentence of a page."""
    lengths = [count_words(sentence) for sentence in split_sentences(page.read_text())] or [0]
    average, num_long = sum(lengths) / len(lengths), sum(n > MAX_SENTENCE_WORDS for n in lengths)
    value = f"{average:4.1f} words a sentence, longest {max(lengths)}, over {MAX_SENTENCE_WORDS}: {num_long}"
    return Figure(page.name, value, average <= MAX_AVERAGE_WORDS and not num_long)


def measure_repository(repository: Path) -> Iterator[Figure]:
    """Measure everything, in the order in which it is printed."""
    yield from measure_code(repository / "src" / "corewise")
    found = {word: count for word, count in count_retired_words(repository).items() if count}
    yield Figure("retired words", f"{sum(found.values())} {found or ''}", sum(found.values()) <= MAX_RETIRED_WORDS)
    for page in (repository / "README.md", *sorted((repository / "docs").glob("*.md"))):
        yield measure_page(page)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("repository", nargs="?", type=Path, default=Path(__file__).parents[1])
    figures = list(measure_repository(parser.parse_args().repository))
    for figure in figures:
        print(f"{'  ' if figure.is_kept else '! '}{figure.name:50} {figure.value}")
    return 0 if all(figure.is_kept for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
