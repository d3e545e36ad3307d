"""Fetches wheels for another machine with pip, using the user's pip configuration."""

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
from corewise.errors import UserError

Reporter = Callable[[str], None]
_PROGRESS_LINE = re.compile(r"\s*(Collecting|Downloading|Processing) (\S+)")
_NO_WHEEL = re.compile(r"No matching distribution found for (.+?)(?: \(from .*)?$", re.MULTILINE)
_NO_WHEELS_OF = re.compile(r"no matching distributions available for your environment:\n((?:.+\n)+)")
_CONFLICT = re.compile(r"The conflict is caused by:\n((?:.+\n)+)")
# pip prints these messages after its last attempt.
_UNREACHABLE = re.compile(r"Retry\(total=0|Could not fetch URL|ReadTimeoutError")
_FULL = "No space left on device"
_LINES_KEPT = 400


@dataclass(frozen=True)
class PackageSource:
    """Where pip looks in addition to its configuration, and constraints on versions."""

    index_url: str | None = None
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    constraints: Path | None = None

    def to_arguments(self) -> list[str]:
        """Convert the source to arguments of pip."""
        arguments = ["--index-url", self.index_url] if self.index_url else []
        arguments += [each for url in self.extra_index_urls for each in ("--extra-index-url", url)]
        arguments += [each for place in self.find_links for each in ("--find-links", place)]
        return arguments + (["--constraint", str(self.constraints)] if self.constraints else [])


def require_pip() -> None:
    """Raise UserError when this interpreter has no pip."""
    # Other ways to look for pip trigger import hooks of setuptools.
    if PathFinder.find_spec("pip") is None:
        raise UserError(
            f"pip is needed to fetch wheels, and {sys.executable} has none: "
            f"run `{sys.executable} -m ensurepip`, or install Corewise in an environment that has pip"
        )


def build_download_command(
    requirements: Sequence[str], folder: Path, target: Target, source: PackageSource
) -> list[str]:
    """Build the pip command that downloads the requirements and their dependencies."""
    command = [sys.executable, "-P", "-m", "pip", "download", "--only-binary=:all:", "--dest", str(folder)]
    command += ["--no-input", "--disable-pip-version-check", "--progress-bar", "off"]
    command += ["--python-version", target.python, "--implementation", "cp"]
    command += [each for tag in target.platform_tags for each in ("--platform", tag)]
    return [*command, *source.to_arguments(), *requirements]


def fetch_wheels(
    requirements: Sequence[str], folder: Path, target: Target, source: PackageSource, report: Reporter
) -> None:
    """Fetch the wheels into the folder; raises UserError with the package that is unavailable and why."""
    # Temporary files go to the disk that holds the bundle, since /tmp is often small.
    scratch = folder / ".pip"
    scratch.mkdir(parents=True)
    env = {**os.environ, "TMPDIR": str(scratch), "PYTHONUNBUFFERED": "1", "COLUMNS": "1000"}
    output: deque[str] = deque(maxlen=_LINES_KEPT)
    with subprocess.Popen(
        build_download_command(requirements, folder, target, source),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=env,
        text=True,
        errors="replace",
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                output.append(line)
                if progress := _PROGRESS_LINE.match(line):
                    report(f"{progress[1].lower()} {progress[2].rpartition('/')[2]}")
        except BaseException:
            process.terminate()
            raise
    if process.returncode:
        raise explain_failure("".join(output), target)


def explain_failure(output: str, target: Target) -> UserError:
    """Explain an error of pip to a user who makes a bundle."""
    if _FULL in output:
        return UserError("the wheels cannot be fetched: the disk is full; free space, or name another folder with -o")
    if _UNREACHABLE.search(output):
        return UserError(
            "the package index cannot be reached: run this on a machine with internet access, or name a "
            f"mirror with --index-url or --find-links. pip's output:\n{_format_last_lines(output, 3)}"
        )
    if conflict := _CONFLICT.search(output):
        without = _NO_WHEELS_OF.search(output)
        named = f"\nNo compatible wheel of: {', '.join(without[1].split())}" if without else ""
        return UserError(f"the requirements conflict for {target}:\n{conflict[1].rstrip()}{named}")
    if missing := _NO_WHEEL.findall(output):
        return UserError(
            f"no wheel of {missing[-1]} for {target}. Choose another --python, a newer --glibc "
            "(see `ldd --version` there), or a place that has one: --index-url, --find-links"
        )
    return UserError(f"pip could not fetch the wheels:\n{_format_last_lines(output)}")


def _format_last_lines(output: str, num: int = 12) -> str:
    lines = [line for line in output.splitlines() if line.strip() and "is ignored: it is neither" not in line]
    return "\n".join(f"  {line}" for line in lines[-num:])
