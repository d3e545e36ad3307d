"""Generated samples with labels that can be learnt."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from corewise.measured.runtimes.base import RankContext
from corewise.measured.runtimes.torch.modules.labelled_data import MAX_CLASSES, LabelledBatches, draw_patterns
from corewise.measured.runtimes.torch.settings import Settings

SETTINGS = Settings(torch.device("cpu"), "float32", "contiguous", "eager", training=True)


def build(rank: int = 0, num_ranks: int = 1, shape: tuple[int, ...] = (3, 8, 8), num_classes: int = 1000) -> Any:
    context = RankContext(rank, num_ranks, "", 1)
    return LabelledBatches(shape, 16, num_classes, SETTINGS, context)


@pytest.mark.parametrize("shape", [(3, 8, 8), (12, 5), (7,)])
def test_the_nearest_pattern_gives_the_label(shape: tuple[int, ...]) -> None:
    data = build(shape=shape)
    (samples,), labels = data.next()
    patterns = draw_patterns(MAX_CLASSES, shape).flatten(1)
    nearest = torch.cdist(samples.flatten(1), patterns).argmin(dim=1)
    assert samples.shape == (16, *shape)
    assert (nearest == labels).float().mean() > 0.9


def test_held_out_samples_are_never_trained_on_and_ranks_hold_equally_many() -> None:
    first, second = build(0, 2), build(1, 2)
    trained = [data.next()[0][0] for data in (first, second)]
    held_out = [data.list_held_out() for data in (first, second)]
    assert len(held_out[0]) == len(held_out[1]) == 8
    assert not torch.equal(trained[0], trained[1])
    assert not torch.equal(held_out[0][0][0][0], held_out[1][0][0][0])
    assert not torch.equal(trained[0], held_out[0][0][0][0])


def test_a_model_with_few_outputs_has_as_many_classes() -> None:
    data = build(num_classes=2)
    assert {int(label) for _ in range(4) for label in data.next()[1]} == {0, 1}
    assert data.collect_facts()["num_classes"] == 2
