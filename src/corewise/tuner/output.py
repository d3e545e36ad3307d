"""The tuned file of a result: what `corewise launch --config` reads."""

from corewise import __version__
from corewise.launcher.adapt import read_fingerprint
from corewise.spec.record import utc_now
from corewise.spec.study import PRESETS
from corewise.spec.tuned import Measured, Subject, Tuned
from corewise.tuner.question import Tunable
from corewise.tuner.result import UNCONFIRMED, TuneResult


def tuned_of(tunable: Tunable, result: TuneResult) -> Tuned:
    """The winner's settings with the machine; figures only where fresh runs gave them."""
    question, host = tunable.question, tunable.planner.host
    # A stopped search knows its knobs alone: what all settings share names the work in the file.
    shared = tunable.plan(tunable.space.default, PRESETS["quick"]).trials[0].params
    params = {**shared, **result.best.params}
    for name in ("workload", "mode", "runtime"):
        params.pop(name, None)
    return Tuned(
        subject=Subject(workload=question.workload, mode=question.mode, runtime=question.runtime),
        params={name: value for name, value in params.items() if value is not None},
        machine=read_fingerprint(host.topology, host.allocation),
        measured=measured_of(result),
        environment=dict(result.environment),
        corewise_version=__version__,
        date=utc_now(),
    )


def measured_of(result: TuneResult) -> Measured | None:
    """The figures of a result, where fresh runs gave them."""
    if result.verdict == UNCONFIRMED or result.best.interval is None or result.default.interval is None:
        return None
    return Measured(
        throughput=result.best.throughput,
        interval=result.best.interval,
        default_throughput=result.default.throughput,
        default_interval=result.default.interval,
        speedup=result.speedup,
        speedup_interval=result.speedup_interval,
        unit=result.unit,
    )
