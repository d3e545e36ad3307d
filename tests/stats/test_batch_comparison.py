"""Many pairs at once say what one at a time does."""

import math

import numpy as np
import pytest
from scipy.stats import mannwhitneyu

from corewise.stats.batch_comparison import Pair, compare_pairs, compute_level, count_processes_needed, has_rank_power
from corewise.stats.occasion_comparison import OCCASION_MARGIN, compare_occasions
from corewise.stats.rank_test import compute_rank_p_values, compute_smallest_p_value
from corewise.stats.trial_comparison import adjust_benjamini_hochberg, adjust_holm, compare_trials

ALPHA = 0.05


def draw_pair(rng: np.random.Generator) -> Pair:
    """Two sides of up to 21 processes, at times with equal values or without any variation."""
    num_a, num_b = (int(n) for n in rng.integers(1, 22, 2))
    digits = int(rng.choice([2, 12]))
    scale = float(rng.choice([0.0, 0.01, 0.05]))
    a = np.round(np.exp(rng.normal(0.0, scale, num_a)), digits)
    b = np.round(np.exp(rng.normal(rng.choice([0.0, 0.03]), scale, num_b)), digits)
    looks = [None, (5, 10), (10, 20)][int(rng.integers(3))]
    return Pair(a.tolist(), b.tolist(), looks, interleaved=bool(rng.integers(2)))


@pytest.mark.parametrize("seed", range(150))
def test_a_single_pair_is_judged_as_by_the_rules_for_one(seed: int) -> None:
    pair = draw_pair(np.random.default_rng(seed))
    margin = 0.0 if pair.interleaved else OCCASION_MARGIN
    rule = compare_trials if pair.interleaved else compare_occasions
    single = rule(pair.a, pair.b, margin=margin, looks=pair.looks)
    batch = compare_pairs([pair])
    assert single.interval is not None
    assert batch.ratio[0] == pytest.approx(single.ratio)
    assert batch.effect[0] == pytest.approx(single.effect_size, abs=1e-12)
    for ours, theirs in ((batch.low[0], single.interval.low), (batch.high[0], single.interval.high)):
        assert ours == pytest.approx(math.nan if theirs is None else theirs, nan_ok=True)
    if single.p_value is None:
        assert math.isnan(batch.p_value[0])
        return
    level = compute_level(pair.looks, 0.95)
    assert batch.p_value[0] == pytest.approx(min(1.0, single.p_value * ALPHA / level))
    differs = batch.adjusted[0] <= ALPHA and abs(math.log(batch.ratio[0])) > math.log1p(margin)
    assert differs == (single.verdict in ("faster", "slower"))
    assert batch.by_ranks[0] == ("Mann-Whitney" in single.method)


@pytest.mark.parametrize(("num_a", "num_b"), [(1, 1), (2, 3), (5, 5), (9, 9), (20, 13), (30, 40)])
def test_ranks_without_ties_have_the_exact_p_value(num_a: int, num_b: int) -> None:
    rng = np.random.default_rng(num_a)
    a, b = rng.normal(size=(20, num_a)), rng.normal(0.7, size=(20, num_b))
    exact = [mannwhitneyu(x, y, method="exact").pvalue for x, y in zip(a, b, strict=True)]
    assert compute_rank_p_values(a, b) == pytest.approx(exact)
    apart = compute_rank_p_values(np.arange(num_a)[None] * 1.0, 100.0 + np.arange(num_b)[None])
    assert apart[0] == pytest.approx(min(1.0, compute_smallest_p_value(num_a, num_b)))


@pytest.mark.parametrize(("num_a", "num_b"), [(4, 4), (9, 12), (110, 120)])
def test_ranks_with_ties_have_the_corrected_normal_p_value(num_a: int, num_b: int) -> None:
    rng = np.random.default_rng(num_b)
    a, b = rng.integers(0, 6, (20, num_a)) * 1.0, rng.integers(0, 7, (20, num_b)) * 1.0
    normal = [mannwhitneyu(x, y, method="asymptotic").pvalue for x, y in zip(a, b, strict=True)]
    assert compute_rank_p_values(a, b) == pytest.approx(normal)


def test_values_that_are_all_equal_show_nothing() -> None:
    assert compute_rank_p_values(np.ones((1, 9)), np.ones((1, 9)))[0] == 1.0


def test_pairs_keep_their_places_whatever_their_sizes() -> None:
    rng = np.random.default_rng(1)
    pairs = [draw_pair(rng) for _ in range(60)] + [Pair([], [1.0]), Pair([1.0], [])]
    batch = compare_pairs(pairs)
    for i, pair in enumerate(pairs[:60]):
        assert batch.effect[i] == pytest.approx(np.sign(np.subtract.outer(pair.b, pair.a)).mean(), abs=1e-12)
    assert np.isnan(batch.ratio[60:]).all()


def test_the_number_of_pairs_raises_every_p_value() -> None:
    rng = np.random.default_rng(2)
    pairs = [Pair(rng.normal(1, 0.01, 12).tolist(), rng.normal(1.01, 0.01, 12).tolist()) for _ in range(30)]
    batch = compare_pairs(pairs)
    assert (batch.adjusted >= batch.p_value).all()
    assert batch.adjusted.tolist() == list(adjust_benjamini_hochberg(batch.p_value.tolist()))


def test_the_false_discovery_rate_lies_between_no_correction_and_holms() -> None:
    raw = [0.001, 0.01, 0.02, 0.03, 0.5]
    adjusted = adjust_benjamini_hochberg(raw)
    assert adjusted == pytest.approx((0.005, 0.025, 0.1 / 3, 0.0375, 0.5))
    assert all(one <= two <= three for one, two, three in zip(raw, adjusted, adjust_holm(raw), strict=True))
    assert adjust_benjamini_hochberg([]) == ()
    with pytest.raises(ValueError, match="between 0 and 1"):
        adjust_benjamini_hochberg([1.5])


def test_ranks_of_few_processes_give_way_to_welch_among_many_pairs() -> None:
    a, b = [1.0, 1.001, 1.002, 1.003, 1.004], [1.5, 1.501, 1.502, 1.503, 1.504]
    assert compare_pairs([Pair(a, b)]).by_ranks[0]
    many = compare_pairs([Pair(a, b), *[Pair(a, a)] * 199])
    assert not many.by_ranks.any()
    assert many.adjusted[0] < 0.001


def test_how_many_processes_ranks_need_among_many_pairs() -> None:
    assert not has_rank_power(5, 5, 200, 0.05)
    assert count_processes_needed(200, 0.05) == 8
    assert has_rank_power(8, 8, 200, 0.05)
    assert count_processes_needed(1, 0.05) == 4
