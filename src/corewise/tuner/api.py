"""`corewise.tune(...)`: the tuner from Python, in a script or a notebook."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from corewise.spec.errors import UserError
from corewise.store.store import Store
from corewise.tuner.durations import read_duration
from corewise.tuner.files import Files
from corewise.tuner.heard import ANY_NUMBER, read_pattern
from corewise.tuner.output import tuned_of
from corewise.tuner.progress import make_follower
from corewise.tuner.question import Tunable, check_classes, checked_values, make_question
from corewise.tuner.result import TuneResult
from corewise.tuner.script import Script
from corewise.tuner.script_question import make_script
from corewise.tuner.script_session import ScriptTuning, tuned_of_script
from corewise.tuner.session import Follower, Tuning


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
    throughput: str | None = None,
    check: str | None = None,
    distributed: bool = False,
    again: bool = False,
    quiet: bool = False,
    follower: Follower | None = None,
) -> TuneResult:
    """The fastest correct way found to run a workload, `my.py:make`, or a command, on this machine.

    A subject of several words is the command of a script, of which only what can be set from outside is
    varied; `throughput`, `check` and `distributed` are for such. `fixed` holds axes that are not varied,
    `args` the workload's own parameters, `allow` the classes of knobs that change numbers (lower-precision,
    batch-statistics, batch). What was measured is kept in `store`; the same call goes on where an interrupted
    one stopped. `output` is written for `corewise launch`, `report` as a page with charts. How it goes is
    told on standard error unless `quiet`.
    """
    check_call(subject, batch=batch, allow=allow, fixed=fixed, args=args)
    values = {**(fixed or {}), **{f"args.{name}": value for name, value in (args or {}).items()}}
    budget_s = read_duration(budget)
    files = Files(None if output is None else Path(output), None if report is None else Path(report))
    files.require()
    following = make_follower(quiet=quiet) if follower is None else nullcontext(follower)
    if not isinstance(subject, str):
        if args or python or environment:
            raise UserError(
                "a script takes no --args, no --python and no environment: they are words of its command, "
                "as in env NAME=VALUE python train.py"
            )
        if mode != "infer" or runtime != "torch":
            raise UserError("--mode and --runtime are for workloads: a script does what its command says")
        check_classes(allow)
        pattern = None if throughput is None else read_pattern(throughput)
        numbers = None if check is None else read_pattern(check, "--check", ANY_NUMBER)
        script = Script(tuple(subject), Path.cwd(), pattern, batch, numbers)
        made = make_script(script, checked_values(values), distributed=distributed, allow=tuple(allow))
        kept = Store.open(store, create=True)
        with following as followed:
            script_run = ScriptTuning(made, kept, followed, budget_s=budget_s, again=again).run
            return files.after(script_run, lambda result: tuned_of_script(made, result))
    if throughput is not None or check is not None or distributed:
        raise UserError(
            "--throughput, --check and --distributed are for scripts: corewise tune -- python train.py"
        )
    question = make_question(
        subject,
        mode=mode,
        batch=batch,
        runtime=runtime,
        fixed=values,
        allow=allow,
        python=python,
        environment=environment,
    )
    tunable = Tunable.of(question)
    kept = Store.open(store, create=True)
    with following as followed:
        run = Tuning(tunable, kept, followed, budget_s=budget_s, again=again).run
        return files.after(run, lambda result: tuned_of(tunable, result))


def check_call(subject: Any, *, batch: Any, allow: Any, fixed: Any, args: Any) -> None:
    """A UserError for what is of a wrong kind, with what to write instead."""
    if isinstance(subject, str):
        words = [subject]
    elif isinstance(subject, Sequence) and all(isinstance(word, str) for word in subject):
        words = list(subject)
    elif callable(subject):
        name = getattr(subject, "__name__", "make")
        raise UserError(
            f"{name}: other processes cannot be given a function: write it to a file and name it, as in "
            f'tune("my.py:{name}"); in a notebook, a cell that begins with %%writefile my.py does that'
        )
    else:
        raise UserError(f"{subject!r:.60}: what to tune is a name, or a list of the words of a command")
    if not words or not words[0].strip():
        raise UserError(
            "nothing to tune: name a workload (resnet50), your own code (my.py:make), or the words of a "
            'command (["python", "train.py"])'
        )
    if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
        raise UserError(f"--batch {batch!r:.60}: a batch is a whole number of at least 1, as in batch=32")
    if isinstance(allow, str) or not isinstance(allow, Collection):
        raise UserError(f'allow={allow!r:.60}: write a list of classes, as in allow=["lower-precision"]')
    for name, given, example in (("fixed", fixed, '{"threads": 4}'), ("args", args, '{"image_size": 128}')):
        if given is not None and not isinstance(given, Mapping):
            raise UserError(f"{name}={given!r:.60}: write a dict, as in {name}={example}")
