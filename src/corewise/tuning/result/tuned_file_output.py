"""Build the tuned file of a result, which `corewise launch --config` reads."""

from corewise import __version__
from corewise.analysis.tuning_results import UNCONFIRMED
from corewise.launch.tuned_file_fit import read_fingerprint
from corewise.study.record import format_utc_now
from corewise.study.study import PRESETS
from corewise.study.tuned_file import MeasuredSpeedup, TunedSettings, TuningSubject
from corewise.tuning.question import Tunable
from corewise.tuning.result.tuning_result import TuneResult


def build_tuned_file(tunable: Tunable, result: TuneResult) -> TunedSettings:
    """Build the tuned file: the winner's settings, the machine, and the figures if fresh runs gave any."""
    question, host = tunable.question, tunable.planner.host
    # The result of a stopped search holds only its knobs; the shared parameters identify the work.
    shared = tunable.plan(tunable.space.default, PRESETS["quick"]).trials[0].params.to_mapping()
    params = {**shared, **result.best.params}
    for name in ("workload", "mode", "runtime"):
        params.pop(name, None)
    return TunedSettings(
        subject=TuningSubject(workload=question.workload, mode=question.mode, runtime=question.runtime),
        params={name: value for name, value in params.items() if value is not None},
        machine=read_fingerprint(host.topology, host.allocation),
        measured=build_measured(result),
        environment=dict(result.environment),
        corewise_version=__version__,
        date=format_utc_now(),
    )


def build_measured(result: TuneResult) -> MeasuredSpeedup | None:
    """Return the figures of a result, or None if there were no fresh runs."""
    if result.verdict == UNCONFIRMED or result.best.interval is None or result.default.interval is None:
        return None
    return MeasuredSpeedup(
        throughput=result.best.throughput,
        interval=result.best.interval,
        default_throughput=result.default.throughput,
        default_interval=result.default.interval,
        speedup=result.speedup,
        speedup_interval=result.speedup_interval,
        unit=result.unit,
    )
