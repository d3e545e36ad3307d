"""Wheels for another machine, fetched by pip under the user's own configuration of it."""

import os
import re
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from corewise.bundle.target import Target
from corewise.spec.errors import UserError

Report = Callable[[str], None]
_TOLD = re.compile(r"\s*(Collecting|Downloading|Processing) (\S+)")
_NO_WHEEL = re.compile(r"No matching distribution found for (.+?)(?: \(from .*)?$", re.MULTILINE)
_NO_WHEELS_OF = re.compile(r"no matching distributions available for your environment:\n((?:.+\n)+)")
_CONFLICT = re.compile(r"The conflict is caused by:\n((?:.+\n)+)")
_UNREACHABLE = re.compile(r"Retry\(total=0|Could not fetch URL|ReadTimeoutError")  # after all its attempts
_FULL = "No space left on device"
_LINES_KEPT = 400


@dataclass(frozen=True)
class Source:
    """Where pip looks besides its own configuration, and the versions it is held to."""

    index_url: str | None = None
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    constraints: Path | None = None

    def words(self) -> list[str]:
        words = ["--index-url", self.index_url] if self.index_url else []
        words += [word for url in self.extra_index_urls for word in ("--extra-index-url", url)]
        words += [word for place in self.find_links for word in ("--find-links", place)]
        return words + (["--constraint", str(self.constraints)] if self.constraints else [])


def require_pip() -> None:
    """A UserError when this interpreter has no pip."""
    if PathFinder.find_spec("pip") is None:  # setuptools changes a process that looks for pip in other ways
        raise UserError(
            f"pip is needed to fetch wheels, and {sys.executable} has none: "
            f"run `{sys.executable} -m ensurepip`, or install Corewise in an environment that has pip"
        )


def download_words(requirements: Sequence[str], folder: Path, target: Target, source: Source) -> list[str]:
    """The command that brings the wheels of the requirements and of all that these require."""
    words = [sys.executable, "-m", "pip", "download", "--only-binary=:all:", "--dest", str(folder)]
    words += ["--no-input", "--disable-pip-version-check", "--progress-bar", "off"]
    words += ["--python-version", target.python, "--implementation", "cp"]
    words += [word for tag in target.platform_tags for word in ("--platform", tag)]
    return [*words, *source.words(), *requirements]


def download(
    requirements: Sequence[str], folder: Path, target: Target, source: Source, report: Report
) -> None:
    """Fetch the wheels into the folder; a UserError names the package that cannot be had, and why."""
    scratch = folder / ".pip"  # on the disk that holds the bundle: /tmp is often small
    scratch.mkdir(parents=True)
    env = {**os.environ, "TMPDIR": str(scratch), "PYTHONUNBUFFERED": "1", "COLUMNS": "1000"}
    said: deque[str] = deque(maxlen=_LINES_KEPT)
    with subprocess.Popen(
        download_words(requirements, folder, target, source),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=env,
        text=True,
        errors="replace",
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                said.append(line)
                if told := _TOLD.match(line):
                    report(f"{told[1].lower()} {told[2].rpartition('/')[2]}")
        except BaseException:
            process.terminate()
            raise
    if process.returncode:
        raise failure("".join(said), target)


def failure(output: str, target: Target) -> UserError:
    """What pip's complaint means for someone who wants a bundle."""
    if _FULL in output:
        return UserError(
            "the wheels cannot be fetched: the disk is full; free space, or name another folder with -o"
        )
    if _UNREACHABLE.search(output):
        return UserError(
            "the package index cannot be reached: run this on a machine with internet access, or name a "
            f"mirror with --index-url or --find-links. pip said:\n{_last_lines(output, 3)}"
        )
    if conflict := _CONFLICT.search(output):
        without = _NO_WHEELS_OF.search(output)
        named = f"\nNo wheel fits of: {', '.join(without[1].split())}" if without else ""
        return UserError(f"no set of wheels for {target} fits together:\n{conflict[1].rstrip()}{named}")
    if missing := _NO_WHEEL.findall(output):
        return UserError(
            f"no wheel of {missing[-1]} for {target}. Choose another --python, a newer --glibc "
            "(`ldd --version` there tells), or a place that has one: --index-url, --find-links"
        )
    return UserError(f"pip could not fetch the wheels:\n{_last_lines(output)}")


def _last_lines(output: str, num: int = 12) -> str:
    kept = [line for line in output.splitlines() if line.strip() and "is ignored: it is neither" not in line]
    return "\n".join(f"  {line}" for line in kept[-num:])
