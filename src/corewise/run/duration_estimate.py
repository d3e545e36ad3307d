"""Estimates how long a plan takes before anything has run."""

from corewise.measured.parameters import BatchScope
from corewise.measured.trial import Trial
from corewise.run.plan import Plan
from corewise.run.run_collector import is_traffic_known

# A conservative rate of convolutions on one core.
GFLOP_PER_CORE_S = 15.0
# A conservative memory bandwidth, independent of the number of cores.
GBYTE_PER_S = 10.0
# Each warm parent imports its framework once.
COLD_START_S = 3.0
# Forking, checking and writing the result.
RUN_OVERHEAD_S = 0.4
WARM_UP_STEPS = 12


def estimate_run_s(trial: Trial) -> float:
    """Estimate how many seconds one run of the trial takes."""
    params, protocol = trial.params, trial.protocol
    batch = params.batch / (params.processes if params.batch_scope == BatchScope.GLOBAL else 1)
    flops = trial.work.get("flops_per_sample", 0.0) * batch
    step_s = flops / (GFLOP_PER_CORE_S * 1e9 * params.threads)
    if is_traffic_known(trial.work):
        step_s = max(step_s, trial.work["bytes_per_sample"] * batch / (GBYTE_PER_S * 1e9))
    sampling_s = max(protocol.min_sample_s, protocol.min_samples * step_s)
    warm_up_s = min(protocol.max_warmup_s, WARM_UP_STEPS * step_s)
    cold_s = COLD_START_S if protocol.start == "fresh" else 0.0
    return RUN_OVERHEAD_S + cold_s + warm_up_s + sampling_s


def estimate_plan_s(plan: Plan) -> float:
    """Estimate how many seconds the whole plan takes with the minimum number of runs."""
    parents = {(trial.env.get("LD_PRELOAD"), tuple(sorted(trial.env.items()))) for trial in plan.trials}
    runs_s = sum(estimate_run_s(trial) * trial.protocol.min_runs for trial in plan.trials)
    return runs_s + COLD_START_S * len(parents)
