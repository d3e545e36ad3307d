"""Summarize a comparison: the geometric mean of the ratios, the counts, and one sentence."""

import math
import sys
from collections.abc import Sequence

import numpy as np

from corewise.analysis.comparison.comparison_model import ComparedTrial, ComparisonSummary, OneSidedTrial, VerdictRule
from corewise.analysis.comparison.verdicts import PER_SAMPLE
from corewise.stats.batch_comparison import Looks, compute_level, count_processes_needed, has_rank_power
from corewise.stats.estimate import Estimate
from corewise.stats.quantiles import compute_normal_quantile
from corewise.text_format import format_count

_SEED = 19790501
_NUM_DRAWS = 2000
# Values drawn in all, for any number of pairs.
_MAX_VALUES_DRAWN = 50_000_000
_CHUNK_VALUES = 4_000_000


def estimate_mean_ratio(trials: Sequence[ComparedTrial], confidence: float) -> Estimate | None:
    """Estimate the geometric mean of the ratios by a seeded bootstrap over pairs and processes.

    Pairs are drawn with replacement. Each drawn pair is moved by the error of its processes, as its interval
    shows it (a parametric second stage; Davison and Hinkley 1997, 3.8). Otherwise the interval of few pairs
    would be too narrow.
    """
    known = [trial for trial in trials if trial.ratio is not None]
    if not known:
        return None
    logs = np.log(np.array([trial.ratio for trial in known], dtype=np.float64))
    z = compute_normal_quantile(0.5 + confidence / 2)
    errors = np.array([_estimate_error(trial, z) for trial in known])
    value, method = math.exp(float(logs.mean())), "geometric mean, bootstrap over pairs and processes"
    # A single pair has its own interval, which is shown next to the mean.
    if len(known) == 1 and not math.isnan(errors[0]):
        return Estimate(value, known[0].low, known[0].high, confidence, known[0].method, 1)
    if len(known) == 1:
        reason = "one pair without an interval shows no variation"
        return Estimate(value, None, None, confidence, method, 1, reason)
    means = _draw_means(logs, np.nan_to_num(errors) ** 2)
    low, high = np.exp(np.quantile(means, [0.5 - confidence / 2, 0.5 + confidence / 2]))
    return Estimate(value, min(float(low), value), max(float(high), value), confidence, method, len(known))


def _estimate_error(trial: ComparedTrial, z: float) -> float:
    if trial.low is None or trial.high is None:
        return math.nan
    return (math.log(trial.high) - math.log(max(trial.low, sys.float_info.min))) / 2 / z


def _draw_means(
    logs: "np.typing.NDArray[np.float64]", variances: "np.typing.NDArray[np.float64]"
) -> "np.typing.NDArray[np.float64]":
    random = np.random.default_rng(_SEED)
    num = logs.size
    num_draws = int(np.clip(_MAX_VALUES_DRAWN // num, 400, _NUM_DRAWS))
    means = []
    for first in range(0, num_draws, max(1, _CHUNK_VALUES // num)):
        size = min(num_draws - first, max(1, _CHUNK_VALUES // num))
        places = random.integers(0, num, (size, num))
        noise = random.standard_normal(size) * np.sqrt(variances[places].sum(axis=1)) / num
        means.append(logs[places].mean(axis=1) + noise)
    return np.concatenate(means)


def summarize_comparison(
    trials: Sequence[ComparedTrial],
    broken: Sequence[OneSidedTrial],
    fixed: Sequence[OneSidedTrial],
    rule: VerdictRule,
    looks: Sequence[Looks],
) -> ComparisonSummary:
    """Compute the counts, mean ratio, sentence and notes; `looks` are the stopping rules in use."""
    overall = estimate_mean_ratio(trials, rule.confidence)
    num_slower = sum(trial.verdict == "slower" for trial in trials)
    num_faster = sum(trial.verdict == "faster" for trial in trials)
    num_undecided = sum(trial.undecided for trial in trials)
    num_disturbed_a = sum(trial.a_num_disturbed > 0 for trial in trials)
    num_disturbed_b = sum(trial.b_num_disturbed > 0 for trial in trials)
    return ComparisonSummary(
        disturbed=_describe_disturbances(trials, num_disturbed_a, num_disturbed_b, rule),
        sentence=_write_sentence(len(trials), num_faster, num_slower, num_undecided, len(broken), overall, rule),
        num_trials=len(trials),
        num_faster=num_faster,
        num_slower=num_slower,
        num_same=len(trials) - num_faster - num_slower - num_undecided,
        num_undecided=num_undecided,
        num_broken=len(broken),
        num_fixed=len(fixed),
        num_regressions=sum(trial.regression for trial in trials) + len(broken),
        num_disturbed_a=num_disturbed_a,
        num_disturbed_b=num_disturbed_b,
        num_in_doubt=sum(trial.in_doubt and trial.verdict != "same" for trial in trials),
        ratio=overall.value if overall else None,
        low=overall.low if overall else None,
        high=overall.high if overall else None,
        notes=_list_notes(trials, rule, looks),
    )


def _write_sentence(
    num: int,
    num_faster: int,
    num_slower: int,
    num_undecided: int,
    num_broken: int,
    overall: Estimate | None,
    rule: VerdictRule,
) -> str:
    trials = f"{num:,} {'trial' if num == 1 else 'trials'}"
    if num == 0:
        text = "No trial was measured on both sides"
    elif num_faster and num_slower:
        text = f"B is faster in {num_faster:,} of {trials} and slower in {num_slower:,}"
    elif num_faster:
        text = f"B is faster in {num_faster:,} of {trials} and slower in none"
    elif num_slower:
        text = f"B is slower in {num_slower:,} of {trials} and faster in none"
    elif num_undecided == num:
        text = f"The data cannot tell whether A and B differ ({trials})"
    elif num_undecided:
        text = f"No difference between A and B is shown in {num - num_undecided:,} of {trials}"
    else:
        text = f"No difference between A and B is shown in {trials}"
    if 0 < num_undecided < num:
        text += f"; in {num_undecided:,} the data cannot tell"
    if num_broken:
        text += f"; {format_count(num_broken, 'trial')} that A measured failed in B"
    if overall is None:
        return f"{text}."
    per_sample = " per sample" if rule.metric == PER_SAMPLE else ""
    interval = (
        f" ({_format_ratio(overall.low)} to {_format_ratio(overall.high)})" if overall.low and overall.high else ""
    )
    over_all = "over all, " if num > 1 else ""
    return f"{text}; {over_all}B takes {_format_ratio(overall.value)} times as long{per_sample} as A{interval}."


def _describe_disturbances(
    trials: Sequence[ComparedTrial], num_disturbed_a: int, num_disturbed_b: int, rule: VerdictRule
) -> list[str]:
    """Describe disturbed runs and the verdicts that they may explain; empty without disturbances."""
    if not num_disturbed_a + num_disturbed_b:
        return []
    trials_of = f"of {format_count(len(trials), 'trial')} of"
    if num_disturbed_a and num_disturbed_b:
        which = f"{num_disturbed_a:,} {trials_of} A and {num_disturbed_b:,} of B"
    else:
        which = f"{num_disturbed_a:,} {trials_of} A" if num_disturbed_a else f"{num_disturbed_b:,} {trials_of} B"
    sentences = [f"{which} had disturbed runs."]
    for verdict, letter in (("slower", "B"), ("faster", "A")):
        num = sum(trial.in_doubt and trial.verdict == verdict for trial in trials)
        if num:
            sentences.append(
                f"{format_count(num, 'trial')} where B is {verdict} may only reflect disturbances of "
                f"{letter}: measure again on a quiet machine, or leave them out with --ignore-disturbed."
            )
    if rule.ignore_disturbed:
        num_left = sum(trial.in_doubt for trial in trials)
        undecided = f"; in {format_count(num_left, 'trial')} too few remain for a verdict" if num_left else ""
        sentences.append(f"Disturbed runs are left out{undecided}.")
    return sentences


def _format_ratio(value: float) -> str:
    return f"{value:.3f}" if value < 100 else f"{value:.3g}"


def _list_notes(trials: Sequence[ComparedTrial], rule: VerdictRule, looks: Sequence[Looks]) -> list[str]:
    """Describe the limits of the data behind a "same"."""
    notes = []
    num = sum(trial.p_value is not None for trial in trials)
    level = min((compute_level(each, rule.confidence) for each in looks), default=1 - rule.confidence)
    few = [
        trial
        for trial in trials
        if trial.p_value is not None
        and not trial.interleaved
        and not has_rank_power(trial.a_num_processes, trial.b_num_processes, num, level)
    ]
    if few:
        least = min(min(trial.a_num_processes, trial.b_num_processes) for trial in few)
        notes.append(
            f"{format_count(least, 'process', 'processes')} a side cannot show a difference among "
            f"{format_count(num, 'comparison')} by rank; {count_processes_needed(num, level)} can. "
            f"Welch's t judged {len(few):,} of them instead: it may miss small differences."
        )
    single = sum(min(trial.a_num_processes, trial.b_num_processes) < 2 for trial in trials)
    if single:
        notes.append(f"{format_count(single, 'trial')} had fewer than 2 processes on a side, too few for a verdict.")
    num_interleaved = sum(trial.interleaved for trial in trials)
    if num_interleaved:
        notes.append(
            f"{format_count(num_interleaved, 'pair')} interleaved in one run: drift affects both sides, "
            "so Welch's t decides without a margin."
        )
    return notes
