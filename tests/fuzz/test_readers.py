"""Fuzzing of the readers: whatever a file holds, a reader raises only what it declares.

The fast tier runs a few seconds of each; `benchmarks/fuzz_readers.py` is the long run. The corpus holds seeds
and every input that ever failed: add an input there before its fault is fixed.
"""

import copy
import json
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from fuzz_mutations import seal_body
from fuzz_targets import CORPUS, TARGETS

CORPUS_FILES = sorted(path for path in CORPUS.rglob("*") if path.is_file())
NUM_FAST, NUM_SLOW = 300, 10_000
ODD = st.sampled_from(
    [float("nan"), float("inf"), 10**400, 2**80, -1, 1e308, "\ud800", "\x1b[0m", "= 1 / 0", "*", "&a"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | ODD,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@cache
def read_seeds(reader: str) -> Sequence[bytes]:
    return TARGETS[reader].read_seeds()


@pytest.mark.parametrize("path", CORPUS_FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_input_of_the_corpus_is_read(path: Path) -> None:
    TARGETS[path.parent.name].check(path.read_bytes())


def check_mutations(reader: str, seed: int) -> None:
    dice, seeds = Random(seed), read_seeds(reader)
    TARGETS[reader].check(TARGETS[reader].make_case(dice, dice.choice(seeds), seeds))


@pytest.mark.parametrize("reader", TARGETS)
@settings(max_examples=NUM_FAST)
@given(seed=st.integers(min_value=0))
def test_mutated_files_raise_no_undeclared_error(reader: str, seed: int) -> None:
    check_mutations(reader, seed)


@pytest.mark.slow
@pytest.mark.parametrize("reader", TARGETS)
@settings(max_examples=NUM_SLOW)
@given(seed=st.integers(min_value=0))
def test_very_many_mutated_files_raise_no_undeclared_error(reader: str, seed: int) -> None:
    check_mutations(reader, seed)


@st.composite
def edited_objects(draw: st.DrawFn, seeds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Draw one of the objects with any value at one of its places."""
    changed = copy.deepcopy(draw(st.sampled_from(seeds)))
    holder: Any = changed
    while True:
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        key = draw(st.sampled_from(keys))
        if not (isinstance(holder[key], (dict, list)) and holder[key] and draw(st.booleans())):
            holder[key] = draw(VALUES)
            return changed
        holder = holder[key]


def load_objects(reader: str) -> list[dict[str, Any]]:
    """Return the objects of a reader's corpus that can be read, without their checksums."""
    texts = [
        path.read_bytes() for path in CORPUS_FILES if path.parent.name == reader and not path.name.startswith("failed-")
    ]
    objects = [json.loads(text) for text in texts if text.rstrip().endswith(b"}") and text.count(b'"schema"') == 1]
    return [{name: each for name, each in value.items() if name != "crc"} for value in objects]


@settings(max_examples=NUM_FAST)
@given(edited_objects(load_objects("store_line")))
def test_a_record_with_any_value_at_any_place_is_read_or_refused(record: dict[str, Any]) -> None:
    TARGETS["store_line"].check(seal_body(json.dumps(record)[:-1].encode()))


@settings(max_examples=NUM_FAST)
@given(edited_objects(load_objects("rank_result")))
def test_a_result_with_any_value_at_any_place_is_read_or_refused(result: dict[str, Any]) -> None:
    TARGETS["rank_result"].check(json.dumps(result).encode())


SECTIONS = ("workload", "mode", "runtime", "axes", "fixed", "constraints", "protocol", "environment", "prefix")
TUNED_SECTIONS = ("schema", "subject", "params", "machine", "measured", "environment", "date")


@pytest.mark.parametrize(("reader", "sections"), [("study_file", SECTIONS), ("tuned_file", TUNED_SECTIONS)])
@settings(max_examples=NUM_FAST)
@given(data=st.data())
def test_any_values_in_the_sections_of_a_file_are_read_or_refused(
    reader: str, sections: Sequence[str], data: st.DataObject
) -> None:
    drawn = data.draw(st.dictionaries(st.sampled_from(sections), VALUES, max_size=4))
    text = json.dumps({"workload": "matmul", "runtime": "numpy", **drawn} if reader == "study_file" else drawn)
    TARGETS[reader].check(text.encode())
