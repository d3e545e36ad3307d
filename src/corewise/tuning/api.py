"""`corewise.tune(...)`: the tuner as a Python function, for scripts and notebooks."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from corewise.errors import UserError
from corewise.store.store import Store
from corewise.study.durations import parse_duration_s
from corewise.tuning.progress_output import open_follower
from corewise.tuning.question import Tunable, build_question, check_classes, validate_values
from corewise.tuning.result.output_files import ResultFiles
from corewise.tuning.result.tuned_file_output import build_tuned_file
from corewise.tuning.result.tuning_result import TuneResult
from corewise.tuning.scripts.script_command import Script
from corewise.tuning.scripts.script_question import build_script_tunable
from corewise.tuning.scripts.script_session import ScriptTuning, build_script_tuned_file
from corewise.tuning.scripts.throughput_parser import ANY_NUMBER, RatePattern, read_pattern, read_rate_pattern
from corewise.tuning.scripts.working_folder import HERE, PRIVATE
from corewise.tuning.session import Follower, Tuning


def tune(
    subject: str | Sequence[str],
    *,
    mode: str = "infer",
    budget: str | float = "10m",
    batch: int | None = None,
    allow: Collection[str] = (),
    fixed: Mapping[str, Any] | None = None,
    args: Mapping[str, Any] | None = None,
    store: str | Path = "corewise-store",
    output: str | Path | None = None,
    report: str | Path | None = None,
    python: str | None = None,
    runtime: str = "torch",
    environment: Mapping[str, str] | None = None,
    trust_environment: bool = False,
    throughput: str | None = None,
    step_time: str | None = None,
    check: str | None = None,
    distributed: bool = False,
    workdir: str | Path = PRIVATE,
    again: bool = False,
    quiet: bool = False,
    follower: Follower | None = None,
) -> TuneResult:
    """Find the fastest correct setting of a workload, `my.py:make`, or a command on this machine.

    The same call resumes an interrupted tuning. Progress is printed on standard error unless `quiet`.

    Args:
        subject: A workload, a factory as `my.py:make`, or the command of a script as a list of strings.
            For a script, only what can be set from outside is varied.
        budget: Time to spend, as "10m" or in seconds.
        allow: Classes of knobs that may change results: lower-precision, batch-statistics, batch.
        fixed: Axes that are not varied, with their values.
        args: Parameters of the workload.
        store: Folder in which all measurements are stored.
        output: Where to write the settings for `corewise launch`.
        report: Where to write an HTML report.
        environment: Variables for every start; they are written into the tuned file.
        trust_environment: Whether `environment` may hold variables that can load code, such as PYTHONPATH.
        throughput, step_time, check, distributed, workdir: Scripts only; see `corewise tune --help`.
        again: Whether to discard what earlier calls found.

    Returns:
        The result; it prints as text, and as HTML in a notebook.

    Raises:
        UserError: An argument is invalid, or the default does not run.

    Example:
        >>> result = corewise.tune("resnet50", batch=32, budget="5m")  # doctest: +SKIP
    """
    check_call(subject, batch=batch, allow=allow, fixed=fixed, args=args)
    values = {**(fixed or {}), **{f"args.{name}": value for name, value in (args or {}).items()}}
    budget_s = parse_duration_s(budget, "--budget")
    files = ResultFiles(None if output is None else Path(output), None if report is None else Path(report))
    files.require_writable()
    follower_context = open_follower(quiet=quiet) if follower is None else nullcontext(follower)
    if not isinstance(subject, str):
        if args or python or environment:
            raise UserError(
                "a script takes no --args, --python or environment: write them into its command, "
                "as in env NAME=VALUE python train.py"
            )
        if mode != "infer" or runtime != "torch":
            raise UserError("--mode and --runtime are for workloads only; leave them out for a script")
        check_classes(allow)
        rate = _read_rate_option(throughput, step_time)
        numbers = None if check is None else read_pattern(check, "--check", ANY_NUMBER)
        script = Script(tuple(subject), Path.cwd(), rate, batch, numbers, workdir=_find_workdir(workdir))
        script_tunable = build_script_tunable(
            script, validate_values(values), distributed=distributed, allow=tuple(allow)
        )
        opened_store = Store.open(store, create=True)
        with follower_context as active_follower:
            script_run = ScriptTuning(script_tunable, opened_store, active_follower, budget_s=budget_s, again=again).run
            return files.run_and_write(script_run, lambda result: build_script_tuned_file(script_tunable, result))
    if distributed or str(workdir) != PRIVATE or any(each is not None for each in (throughput, step_time, check)):
        raise UserError(
            "--throughput, --step-time, --check, --distributed and --workdir are for scripts: "
            "corewise tune -- python train.py"
        )
    question = build_question(
        subject,
        mode=mode,
        batch=batch,
        runtime=runtime,
        fixed=values,
        allow=allow,
        python=python,
        environment=environment,
    )
    tunable = Tunable.from_question(question, trust_environment=trust_environment)
    opened_store = Store.open(store, create=True)
    with follower_context as active_follower:
        run = Tuning(tunable, opened_store, active_follower, budget_s=budget_s, again=again).run
        return files.run_and_write(run, lambda result: build_tuned_file(tunable, result))


def _read_rate_option(throughput: str | None, step_time: str | None) -> RatePattern | None:
    if throughput is not None and step_time is not None:
        raise UserError("--throughput and --step-time: give the one that the script prints, not both")
    if step_time is not None:
        return read_rate_pattern(step_time, "--step-time")
    return None if throughput is None else read_rate_pattern(throughput)


def _find_workdir(workdir: str | Path) -> Path | None:
    """Return the folder of all starts; None if each start has a private one."""
    if str(workdir) in (PRIVATE, HERE):
        return None if str(workdir) == PRIVATE else Path.cwd()
    folder = Path(workdir).absolute()
    if not folder.is_dir():
        raise UserError(
            f"--workdir {workdir}: there is no such folder. Create it, or write private (a mirror of this folder for "
            "each start) or here (this folder)"
        )
    return folder


def check_call(subject: Any, *, batch: Any, allow: Any, fixed: Any, args: Any) -> None:
    """Raise UserError if an argument has a wrong type, and say what to write instead."""
    if isinstance(subject, str):
        command = [subject]
    elif isinstance(subject, Sequence) and all(isinstance(part, str) for part in subject):
        command = list(subject)
    elif callable(subject):
        name = getattr(subject, "__name__", "make")
        raise UserError(
            f"{name}: a function cannot be passed to other processes. Write it to a file and name it, as in "
            f'tune("my.py:{name}"); in a notebook, start a cell with %%writefile my.py'
        )
    else:
        raise UserError(f"{subject!r:.60}: the subject must be a name, or a command as a list of strings")
    if not command or not command[0].strip():
        raise UserError(
            "nothing to tune: name a workload (resnet50), your own code (my.py:make), or a "
            'command (["python", "train.py"])'
        )
    if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
        raise UserError(f"--batch {batch!r:.60}: the batch must be an integer of at least 1, as in batch=32")
    if isinstance(allow, str) or not isinstance(allow, Collection):
        raise UserError(f'allow={allow!r:.60}: pass a list of classes, as in allow=["lower-precision"]')
    for name, given, example in (("fixed", fixed, '{"threads": 4}'), ("args", args, '{"image_size": 128}')):
        if given is not None and not isinstance(given, Mapping):
            raise UserError(f"{name}={given!r:.60}: pass a dict, as in {name}={example}")
