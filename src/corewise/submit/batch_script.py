"""Builds the batch script of a job. Pure functions: sbatch itself is started by slurm_commands.

One script serves one shape of allocation. All trials run inside one job, so the queue is waited for once.
"""

import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from corewise.errors import UserError
from corewise.study.durations import parse_duration_s
from corewise.submit.site_file import Site, check_option_value

# The job stops this many seconds before its limit, or a quarter of a shorter limit before it.
STOP_MARGIN_S = 45
# The exit code of a job that does not see the store of the submitting host.
NOT_SHARED = 66
# The exit code of a shell that does not find a program.
NOT_FOUND = 127
_SLURM_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """One job to submit.

    Attributes:
        name: The unique name of the job among those of the store.
        verb: The verb of Corewise that the job runs: `run` or `tune`.
        arguments: The arguments of the verb, without those that only the job knows.
        command: The words after `--`, for a script that is tuned.
        folder: The working folder of the job.
        time_limit_s: The limit of the job; that of the partition if missing.
    """

    name: str
    study: str
    nodes: int
    arguments: tuple[str, ...]
    store: Path
    folder: Path
    python: str
    site: Site
    time_limit_s: int | None = None
    verb: str = "run"
    command: tuple[str, ...] = ()

    @property
    def script_path(self) -> Path:
        return self.store / "jobs" / f"{self.name}.sh"

    @property
    def log_path(self) -> Path:
        return self.store / "jobs" / f"{self.name}.log"

    @property
    def purpose(self) -> str:
        """What the job measures; two jobs with equal text do the same work."""
        if self.verb == "run":
            return shlex.join((*self.arguments, "--nodes", str(self.nodes)))
        return shlex.join((self.verb, *self.arguments, "--", *self.command))


def build_batch_script(request: JobRequest) -> str:
    """Build the text of the batch script."""
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in _list_options(request)), ""]
    lines += [
        "# The store must be visible here under the same path, before the first trial.",
        f"if [ ! -e {shlex.quote(str(request.script_path))} ]; then",
        f'  echo "corewise: $(hostname) does not see the store {_quote_inside(str(request.store))}" >&2',
        f"  exit {NOT_SHARED}",
        "fi",
    ]
    site = request.site
    if site.modules:
        lines.append(f"module load {' '.join(site.modules)} || exit {NOT_FOUND}")
    lines += site.environment
    if site.scratch:
        lines += [f'export TMPDIR="{_quote_inside(site.scratch, keep_variables=True)}"', 'mkdir -p "$TMPDIR"']
    # A tuning has a budget of its own.
    lines += _build_end_lines(request) if request.verb == "run" else []
    return "\n".join([*lines, f"exec {_build_command(request)}"]) + "\n"


def compute_stop_margin_s(time_limit_s: int) -> int:
    """Compute how many seconds before its limit a job stops."""
    return min(STOP_MARGIN_S, time_limit_s // 4)


def _list_options(request: JobRequest) -> list[str]:
    site = request.site
    named = {
        "--partition": site.partition,
        "--account": site.account,
        "--constraint": site.constraint,
        "--qos": site.qos,
        "--time": format_slurm_time(request.time_limit_s) if request.time_limit_s else "",
    }
    options = [f"--job-name={request.name}", f"--nodes={request.nodes}", "--ntasks-per-node=1"]
    options += [f"{name}={value}" for name, value in named.items() if value]
    # Whole nodes: other jobs would disturb the measurements.
    options += ["--exclusive", "--mem=0"] if site.is_exclusive else []
    # A job that is preempted, or whose node is lost, returns to the queue and resumes.
    options += ["--requeue", "--open-mode=append"]
    options += [f"--chdir={_quote_option(request.folder)}", f"--output={_quote_option(request.log_path)}"]
    return [*options, *site.sbatch_options]


def _build_end_lines(request: JobRequest) -> list[str]:
    """Build the lines that find out when the job must stop; the job finds its end itself if no limit is given."""
    if request.time_limit_s is None:
        return [f'stop_at="${{SLURM_JOB_END_TIME:+--stop-at=$((SLURM_JOB_END_TIME - {STOP_MARGIN_S}))}}"']
    margin_s = compute_stop_margin_s(request.time_limit_s)
    return [
        f'end="${{SLURM_JOB_END_TIME:-$(($(date +%s) + {request.time_limit_s}))}}"',
        f'stop_at="--stop-at=$((end - {margin_s}))"',
    ]


def _build_command(request: JobRequest) -> str:
    nodes = () if request.nodes == 1 else ("--nodes", str(request.nodes))
    start = (*request.site.container, request.site.python or request.python, "-P", "-m", "corewise")
    options = (*request.arguments, *nodes, "--store", str(request.store), "--job", request.name)
    line = shlex.join((*start, request.verb, *options))
    # Without quotes, an unknown end leaves no argument.
    line += " $stop_at" if request.verb == "run" else ""
    return f"{line} -- {shlex.join(request.command)}" if request.command else line


def _quote_option(path: Path) -> str:
    """Quote a path for a line of #SBATCH, where a percent sign begins a pattern."""
    text = str(path)
    if "\n" in text or '"' in text:
        raise UserError(f"{text!r}: sbatch takes no path with quotes or line breaks; choose another folder")
    text = text.replace("%", "%%")
    return f'"{text}"' if re.search(r"[\s#']", text) else text


def _quote_inside(text: str, *, keep_variables: bool = False) -> str:
    """Quote a text for use between double quotes of the shell."""
    return re.sub(r'([\\"`])' if keep_variables else r'([\\"`$])', r"\\\1", text)


def parse_time_limit_s(text: str) -> int:
    """Return the seconds of a time limit: minutes or HH:MM:SS as Slurm writes them, or 90m and 2h.

    Raises a UserError for any other text.
    """
    match = _SLURM_TIME.fullmatch(text.strip())
    if match is None:
        return max(1, round(parse_duration_s(text, "--time")))
    days, *given = match.groups()
    parts = [int(part) for part in given if part is not None]
    if days is not None:
        hours, minutes, seconds = [*parts, 0, 0][:3]
    elif len(parts) == 3:
        hours, minutes, seconds = parts
    else:
        hours, (minutes, seconds) = 0, [*parts, 0][:2]
    limit_s = ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds
    if not 0 < limit_s < 10**8:
        raise UserError(f"--time {text}: the limit must be above 0; write 30 (minutes), 02:00:00 or 90m")
    return limit_s


def format_slurm_time(seconds: int) -> str:
    """Format a time limit as D-HH:MM:SS, rounded up to the minutes that Slurm counts in."""
    minutes = -(-seconds // 60)
    return f"{minutes // 1440}-{minutes // 60 % 24:02d}:{minutes % 60:02d}:00"


def parse_node_counts(text: str) -> tuple[int, ...]:
    """Return the counts of `--nodes 1,2,4`, each once and in their order, or raise a UserError."""
    counts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and 0 < int(part) < 10**6 for part in counts):
        raise UserError(f"--nodes {text}: expected counts of nodes such as 1,2,4")
    return tuple(dict.fromkeys(int(part) for part in counts))


def override_site(site: Site, **options: str | None) -> Site:
    """Return the site with the options of the command line in place of its own."""
    given = {name: value for name, value in options.items() if value is not None}
    for name, value in given.items():
        try:
            check_option_value(value)
        except ValueError as error:
            raise UserError(f"--{name}: {error}") from None
    return replace(site, **given)  # type: ignore[arg-type]
