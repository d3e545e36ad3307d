"""`corewise.tune(...)`: the tuner from Python, in a script or a notebook."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from corewise.spec.errors import UserError
from corewise.store.store import Store
from corewise.tuner.durations import read_duration
from corewise.tuner.follow import Quiet
from corewise.tuner.heard import read_pattern
from corewise.tuner.output import write_result
from corewise.tuner.question import Tunable, checked_values, make_question
from corewise.tuner.result import TuneResult
from corewise.tuner.script import Script
from corewise.tuner.script_question import make_script
from corewise.tuner.script_session import ScriptTuning, write_script_result
from corewise.tuner.session import Follower, Interrupted, Tuning, require_output


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
    python: str | None = None,
    runtime: str = "torch",
    environment: Mapping[str, str] | None = None,
    throughput: str | None = None,
    distributed: bool = False,
    again: bool = False,
    follower: Follower | None = None,
) -> TuneResult:
    """The fastest correct way found to run a workload, `my.py:make`, or a command, on this machine.

    A subject of several words is the command of a script, of which only what can be set from outside is
    varied; `throughput` and `distributed` are for such. `fixed` holds axes that are not varied, `args` the
    workload's own parameters, `allow` the classes of knobs that change numbers (lower-precision,
    batch-statistics, batch). What was measured is kept in `store`; the same call goes on where an interrupted
    one stopped.
    """
    values = {**(fixed or {}), **{f"args.{name}": value for name, value in (args or {}).items()}}
    budget_s = read_duration(budget)
    path = None if output is None else Path(output)
    if path is not None:
        require_output(path)
    followed = follower or Quiet()
    if not isinstance(subject, str):
        if args or python or environment:
            raise UserError("a script takes no --args and no --python: they are words of its command")
        pattern = None if throughput is None else read_pattern(throughput)
        script = Script(tuple(subject), Path.cwd(), pattern, batch)
        made = make_script(script, checked_values(values), distributed=distributed, allow=tuple(allow))
        kept = Store.open(store, create=True)
        tuning = ScriptTuning(made, kept, followed, budget_s=budget_s, again=again)
        return _finished(tuning.run, path, lambda file, result: write_script_result(file, made, result))
    if throughput is not None or distributed:
        raise UserError("--throughput and --distributed are for scripts: corewise tune -- python train.py")
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
    run = Tuning(tunable, kept, followed, budget_s=budget_s, again=again).run
    return _finished(run, path, lambda file, result: write_result(file, tunable, result))


def _finished(
    run: Callable[[], TuneResult], path: Path | None, write: Callable[[Path, TuneResult], None]
) -> TuneResult:
    """The result of a tuning, written where that is wanted even when the user stops it."""
    try:
        result = run()
    except Interrupted as stopped:
        if path is None:
            raise
        write(path, stopped.result)
        raise Interrupted(replace(stopped.result, output=str(path))) from None
    if path is None:
        return result
    write(path, result)
    return replace(result, output=str(path))
