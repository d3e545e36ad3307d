"""All pairs together: the geometric mean of their ratios, the counts, and one sentence."""

import math
import sys
from collections.abc import Sequence

import numpy as np

from corewise.comparison.model import ComparedTrial, OneSided, Rule, Summary
from corewise.comparison.verdicts import PER_SAMPLE
from corewise.report.words import counted
from corewise.stats.estimate import Estimate
from corewise.stats.pairs import Looks, level_of, num_processes_needed, ranks_can_tell
from corewise.stats.quantiles import normal_quantile

_SEED = 19790501
_NUM_DRAWS = 2000
_MOST_DRAWN = 50_000_000  # values drawn in all, however many pairs there are
_AT_A_TIME = 4_000_000


def mean_ratio(trials: Sequence[ComparedTrial], confidence: float) -> Estimate | None:
    """The geometric mean of the ratios with its interval, by a seeded bootstrap over pairs and processes.

    Pairs are drawn with replacement, and each pair drawn is moved by the error of its own processes as its
    interval shows it (a parametric second stage; Davison and Hinkley 1997, 3.8), so that a few pairs, or one,
    do not look surer than they are.
    """
    known = [trial for trial in trials if trial.ratio is not None]
    if not known:
        return None
    logs = np.log(np.array([trial.ratio for trial in known], dtype=np.float64))
    z = normal_quantile(0.5 + confidence / 2)
    errors = np.array([_error(trial, z) for trial in known])
    value, method = math.exp(float(logs.mean())), "geometric mean, bootstrap over pairs and processes"
    if len(known) == 1 and not math.isnan(errors[0]):  # one pair has its own interval, which is shown beside
        return Estimate(value, known[0].low, known[0].high, confidence, known[0].method, 1)
    if len(known) == 1:
        reason = "one pair without an interval of its own shows no variation"
        return Estimate(value, None, None, confidence, method, 1, reason)
    means = _drawn_means(logs, np.nan_to_num(errors) ** 2)
    low, high = np.exp(np.quantile(means, [0.5 - confidence / 2, 0.5 + confidence / 2]))
    return Estimate(value, min(float(low), value), max(float(high), value), confidence, method, len(known))


def _error(trial: ComparedTrial, z: float) -> float:
    if trial.low is None or trial.high is None:
        return math.nan
    return (math.log(trial.high) - math.log(max(trial.low, sys.float_info.min))) / 2 / z


def _drawn_means(
    logs: "np.typing.NDArray[np.float64]", variances: "np.typing.NDArray[np.float64]"
) -> "np.typing.NDArray[np.float64]":
    random = np.random.default_rng(_SEED)
    num = logs.size
    num_draws = int(np.clip(_MOST_DRAWN // num, 400, _NUM_DRAWS))
    means = []
    for first in range(0, num_draws, max(1, _AT_A_TIME // num)):
        size = min(num_draws - first, max(1, _AT_A_TIME // num))
        places = random.integers(0, num, (size, num))
        noise = random.standard_normal(size) * np.sqrt(variances[places].sum(axis=1)) / num
        means.append(logs[places].mean(axis=1) + noise)
    return np.concatenate(means)


def summarise(
    trials: Sequence[ComparedTrial],
    broken: Sequence[OneSided],
    fixed: Sequence[OneSided],
    rule: Rule,
    looks: Sequence[Looks],
) -> Summary:
    """The counts, the mean ratio, the sentence, and what these data cannot show; `looks` is those in use."""
    overall = mean_ratio(trials, rule.confidence)
    num_slower = sum(trial.verdict == "slower" for trial in trials)
    num_faster = sum(trial.verdict == "faster" for trial in trials)
    num_undecided = sum(trial.undecided for trial in trials)
    num_disturbed_a = sum(trial.a_num_disturbed > 0 for trial in trials)
    num_disturbed_b = sum(trial.b_num_disturbed > 0 for trial in trials)
    return Summary(
        disturbed=_disturbed(trials, num_disturbed_a, num_disturbed_b, rule),
        sentence=_sentence(len(trials), num_faster, num_slower, num_undecided, len(broken), overall, rule),
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
        notes=_notes(trials, rule, looks),
    )


def _sentence(
    num: int,
    num_faster: int,
    num_slower: int,
    num_undecided: int,
    num_broken: int,
    overall: Estimate | None,
    rule: Rule,
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
        text += f"; {counted(num_broken, 'trial')} that A measured failed in B"
    if overall is None:
        return f"{text}."
    per_sample = " per sample" if rule.metric == PER_SAMPLE else ""
    interval = f" ({_ratio(overall.low)} to {_ratio(overall.high)})" if overall.low and overall.high else ""
    over_all = "over all, " if num > 1 else ""
    return f"{text}; {over_all}B takes {_ratio(overall.value)} times as long{per_sample} as A{interval}."


def _disturbed(
    trials: Sequence[ComparedTrial], num_disturbed_a: int, num_disturbed_b: int, rule: Rule
) -> list[str]:
    """What must be said first where others disturbed runs that count; empty where none was."""
    if not num_disturbed_a + num_disturbed_b:
        return []
    trials_of = f"of {counted(len(trials), 'trial')} of"
    if num_disturbed_a and num_disturbed_b:
        which = f"{num_disturbed_a:,} {trials_of} A and {num_disturbed_b:,} of B"
    else:
        which = (
            f"{num_disturbed_a:,} {trials_of} A" if num_disturbed_a else f"{num_disturbed_b:,} {trials_of} B"
        )
    found = [f"{which} had runs that others disturbed."]
    for verdict, letter in (("slower", "B"), ("faster", "A")):
        num = sum(trial.in_doubt and trial.verdict == verdict for trial in trials)
        if num:
            found.append(
                f"{counted(num, 'trial')} where B is {verdict} may be so only because others disturbed "
                f"{letter}: measure again in quiet, or leave such runs out with --ignore-disturbed."
            )
    if rule.ignore_disturbed:
        num_left = sum(trial.in_doubt for trial in trials)
        kept = f"; in {counted(num_left, 'trial')} too few are left to tell" if num_left else ""
        found.append(f"Disturbed runs are left out{kept}.")
    return found


def _ratio(value: float) -> str:
    return f"{value:.3f}" if value < 100 else f"{value:.3g}"


def _notes(trials: Sequence[ComparedTrial], rule: Rule, looks: Sequence[Looks]) -> list[str]:
    """What the reader must know before believing a "same"."""
    notes = []
    num = sum(trial.p_value is not None for trial in trials)
    level = min((level_of(each, rule.confidence) for each in looks), default=1 - rule.confidence)
    few = [
        trial
        for trial in trials
        if trial.p_value is not None
        and not trial.interleaved
        and not ranks_can_tell(trial.a_num_processes, trial.b_num_processes, num, level)
    ]
    if few:
        least = min(min(trial.a_num_processes, trial.b_num_processes) for trial in few)
        notes.append(
            f"{counted(least, 'process', 'processes')} a side cannot show a difference among "
            f"{counted(num, 'comparison')} by rank; {num_processes_needed(num, level)} can. "
            f"Welch's t judged {len(few):,} of them instead: it finds large differences and misses small."
        )
    single = sum(min(trial.a_num_processes, trial.b_num_processes) < 2 for trial in trials)
    if single:
        notes.append(
            f"{counted(single, 'trial')} had fewer than 2 processes on a side: nothing can be told of them."
        )
    num_interleaved = sum(trial.interleaved for trial in trials)
    if num_interleaved:
        notes.append(
            f"{counted(num_interleaved, 'pair')} measured in turns in one run: drift fell on both alike, "
            "so Welch's t without a margin decides."
        )
    return notes
