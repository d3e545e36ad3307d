"""Names as the page and its figures have them: a workload without its folder, keys that tell charts apart."""

import pytest

from corewise.report.charts.look import key_of
from corewise.report.phrases import own_name, workload_words

OWN = "/home/alice/projects/a-very-long-name-of-a-folder/deep/bench/mine.py:make"


@pytest.mark.parametrize(
    ("workload", "words"),
    [
        (OWN, "mine.py:make"),
        ("mine.py:make", "mine.py:make"),
        ("resnet50", "ResNet-50"),
        ("matmul", "matrix product"),
        ("", "the workload"),
    ],
)
def test_a_workload_is_named_without_its_folder(workload: str, words: str) -> None:
    assert workload_words(workload) == words


def test_what_is_no_file_keeps_its_slashes() -> None:
    assert own_name("a/b") == "a/b"


def test_a_key_names_no_folder_and_keeps_the_kind_of_the_chart() -> None:
    assert key_of("study", OWN, "infer", "throughput", "batch") == "study-mine-py-make-infer-throughput-batch"


def test_a_key_too_long_loses_letters_of_its_longest_words() -> None:
    kinds = ("samples", "efficiency-threads", "memory-batch")
    keys = [key_of("a" * 70, "b" * 60, "train", kind) for kind in kinds]
    assert max(map(len, keys)) <= 80
    assert [key.endswith(f"-train-{kind}") for key, kind in zip(keys, kinds, strict=True)] == [True] * 3
    assert len(set(keys)) == 3
