"""Formats that are recognised without a pattern, as the tools print them."""

import math
import os
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from corewise.tuning.scripts import throughput_parser
from corewise.tuning.scripts.rate_source import FormatDetector, RecognisedFormat
from corewise.tuning.scripts.throughput_parser import PrintedThroughputs, RatePattern


@pytest.fixture(autouse=True)
def _accept_times_of_the_past(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput_parser, "MAX_CLOCK_LAG_S", math.inf)


class Printer:
    """Appends to an output file at given times, like a script."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "output"
        self.path.touch()

    def print(self, text: str, at_s: float) -> None:
        with self.path.open("a", newline="") as file:
            file.write(text)
        os.utime(self.path, (1000 + at_s, 1000 + at_s))


def recognise(
    folder: Path, texts: Sequence[tuple[float, str]], *, has_ended: bool = False, batch: float = 1.0
) -> RecognisedFormat | None:
    printer = Printer(folder)
    detector = FormatDetector(printer.path, "", batch, is_distributed=False)
    found = None
    for at_s, text in texts:
        printer.print(text, at_s)
        found = detector.detect(has_ended=False)
        if found is not None:
            return found
    return detector.detect(has_ended=True) if has_ended else None


def tqdm_bar(count: int, rate: str, label: str = "", total: int = 100) -> str:
    return f"\r{label}{count:3}%|████      | {count}/{total} [00:05<00:10, {rate}, v_num=0]"


def keras_bar(count: int) -> str:
    deleted = "\b" * 60
    bar = "\x1b[32m━━━━\x1b[0m\x1b[37m━━━━\x1b[0m"
    return f"\r{deleted}\r\x1b[1m{count:3}/100\x1b[0m {bar} \x1b[1m3s\x1b[0m 12ms/step - loss: 0.7"


COUNTERS = {
    "tqdm": ("tqdm progress bar", lambda count: tqdm_bar(count, "9.81it/s")),
    "tqdm slow": ("tqdm progress bar", lambda count: tqdm_bar(count, "12.10s/it")),
    "tqdm of an epoch": ("tqdm progress bar 'Epoch #'", lambda count: tqdm_bar(count, "9it/s", "Epoch 3: ")),
    "tqdm without a total": ("tqdm progress bar without a total", lambda count: f"\r{count}it [00:05,  9.81it/s]"),
    "keras": ("Keras progress bar", keras_bar),
    "old keras": ("Keras progress bar", lambda count: f"\r {count}/100 [=>....] - ETA: 3s - loss: 0.5"),
    "mnist": (
        "samples of an epoch ([n/total (p%)])",
        lambda count: f"Train Epoch: 1 [{count}/60000 ({count}%)]\tLoss: 2.300039\n",
    ),
    "imagenet": (
        "batches of an epoch ([n/total]) 'Epoch'",
        lambda count: f"Epoch: [0][{count:4}/5005]\tTime  1.234 ( 1.300)\tData  0.001 ( 0.002)\tLoss 7.0 (7.1)\n",
    ),
}


@pytest.mark.parametrize("case", COUNTERS)
def test_a_counter_gives_the_steps_between_the_times_of_its_lines(tmp_path: Path, case: str) -> None:
    name, print_count = COUNTERS[case]
    found = recognise(tmp_path, [(0.5 * i, print_count(1 + 2 * i)) for i in range(6)])
    assert found is not None
    assert found.source.name == name
    assert found.reader.compute_throughput(found.progress) == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("line", "name", "rate"),
    [
        ("iter 10: loss 4.2000, time 125.00ms, mfu 3.10%\n", "nanoGPT (time per iteration)", 8.0),
        ("| epoch   1 |   200/ 2983 batches | lr 20.00 | ms/batch 12.50 | loss  5.43 |\n", "ms/batch", 80.0),
        ("iter_dt 50.00ms; iter 100: train loss 1.23\n", "printed step time", 20.0),
        ("step 7 | loss 5.9 | 1,234.5 images/sec\n", "printed rate", 1234.5),
        ("step 7 | loss: 5.9 | tok/sec: 1234.5\n", "printed rate", 1234.5),
        ("step 7: 0.25 s/step\n", "printed step time", 4.0),
        ("global_step/sec is 3 steps/s\n", "printed step rate", 3.0),
    ],
)
def test_a_printed_value_is_recognised_when_it_comes_twice(tmp_path: Path, line: str, name: str, rate: float) -> None:
    assert recognise(tmp_path, [(0.0, line)]) is None
    found = recognise(tmp_path, [(0.1, line)] * 2)
    assert found is not None
    assert found.source.name == name
    assert found.reader.compute_throughput(found.progress) == pytest.approx(rate)


@pytest.mark.parametrize(
    "line",
    [
        "{'train_runtime': 8.27, 'train_samples_per_second': 29.02, 'train_steps_per_second': 7.2, 'epoch': 1.2}\n",
        "{'train_runtime': '8.27', 'train_samples_per_second': '29.02', 'train_steps_per_second': '7.2'}\n",
        "  train_samples_per_second =      29.02\n",
    ],
)
def test_the_summary_of_the_trainer_counts_at_the_end_of_a_run(tmp_path: Path, line: str) -> None:
    assert recognise(tmp_path, [(0.0, line)]) is None
    found = recognise(tmp_path, [(0.1, "")], has_ended=True)
    assert found is not None
    assert "Trainer" in found.source.name
    assert found.reader.compute_throughput(found.progress) == 29.02


def test_a_line_per_epoch_of_keras_adds_its_steps(tmp_path: Path) -> None:
    lines = [(2.0 * i, f"Epoch {i}/9\n20/20 - 2s - 99ms/step - loss: 0.7036\n") for i in range(4)]
    found = recognise(tmp_path, lines)
    assert found is not None
    assert found.source.name == "Keras line per epoch"
    assert found.reader.compute_throughput(found.progress) == pytest.approx(10.0)


def test_bars_of_preparations_and_downloads_are_not_the_training(tmp_path: Path) -> None:
    prepare = [(0.5 * i, tqdm_bar(10 + i, "99 examples/s", "Map: ")) for i in range(6)]
    download = [(3 + 0.5 * i, tqdm_bar(10 + i, "99.1MB/s")) for i in range(6)]
    assert recognise(tmp_path, [*prepare, *download]) is None


def test_the_time_between_epochs_and_validations_does_not_count(tmp_path: Path) -> None:
    first = [(0.5 * i, tqdm_bar(1 + i, "2it/s")) for i in range(6)]
    found = recognise(tmp_path, first)
    assert found is not None
    printer = Printer(tmp_path)
    for at_s, text in (
        (50.0, tqdm_bar(9, "9it/s", total=20)),
        (60.0, tqdm_bar(0, "?it/s")),
        (60.5, tqdm_bar(1, "2it/s")),
    ):
        printer.print(text, at_s)
        found.progress += found.reader.read_new()
    assert len({each.series for each in found.progress}) == 2
    assert found.reader.compute_throughput(found.progress) == pytest.approx(2.0)


def test_steps_count_as_their_samples_if_the_batch_is_known(tmp_path: Path) -> None:
    found = recognise(tmp_path, [(0.5 * i, tqdm_bar(1 + i, "2it/s")) for i in range(6)], batch=16)
    assert found is not None
    assert found.reader.compute_throughput(found.progress) == pytest.approx(32.0)
    output = tmp_path / "times"
    output.write_text("step 3: 250 ms/step, 64 img/s\n" * 2)
    form = PrintedThroughputs(output, RatePattern(re.compile(r"(\d+)(?= ms)")), samples_per_step=16)
    assert form.read_new() == [64.0, 64.0]


def test_counters_of_samples_are_not_recognised_for_several_processes(tmp_path: Path) -> None:
    printer = Printer(tmp_path)
    detector = FormatDetector(printer.path, "", 1.0, is_distributed=True)
    for i in range(6):
        printer.print(f"Train Epoch: 1 [{64 * i}/60000 ({i}%)]\tLoss: 2.300039\n", float(i))
        assert detector.detect(has_ended=False) is None


def test_output_without_a_known_format_is_not_recognised(tmp_path: Path) -> None:
    lines = [(float(i), f"epoch {i}/9: loss {i / 3:.3f}, elapsed 3{i}s, lr 1e-3\nsaved 3 files\n") for i in range(5)]
    assert recognise(tmp_path, lines, has_ended=True) is None
