"""How long a plan will take, roughly, before anything has run."""

from corewise.engine.collect import is_traffic_known
from corewise.engine.plan import Plan
from corewise.spec.trial import Trial

GFLOP_PER_CORE_S = 15.0  # a cautious rate for convolutions on one core
GBYTE_PER_S = 10.0  # a cautious rate for arrays in memory, whatever the number of cores
COLD_START_S = 3.0  # importing a framework, once per warm parent
RUN_OVERHEAD_S = 0.4  # fork, check and result
WARM_UP_STEPS = 12


def run_estimate_s(trial: Trial) -> float:
    """Seconds one run of the trial is likely to take."""
    params, protocol = trial.params, trial.protocol
    batch = int(params["batch"]) / (int(params["processes"]) if params["batch_scope"] == "global" else 1)
    flops = trial.work.get("flops_per_sample", 0.0) * batch
    step_s = flops / (GFLOP_PER_CORE_S * 1e9 * int(params["threads"]))
    if is_traffic_known(trial.work):
        step_s = max(step_s, trial.work["bytes_per_sample"] * batch / (GBYTE_PER_S * 1e9))
    sampling_s = max(protocol.min_sample_s, protocol.min_samples * step_s)
    warm_up_s = min(protocol.max_warmup_s, WARM_UP_STEPS * step_s)
    cold_s = COLD_START_S if protocol.start == "fresh" else 0.0
    return RUN_OVERHEAD_S + cold_s + warm_up_s + sampling_s


def plan_estimate_s(plan: Plan) -> float:
    """Seconds the whole plan is likely to take at its least number of runs."""
    parents = {(trial.env.get("LD_PRELOAD"), tuple(sorted(trial.env.items()))) for trial in plan.trials}
    runs_s = sum(run_estimate_s(trial) * trial.protocol.min_runs for trial in plan.trials)
    return runs_s + COLD_START_S * len(parents)
