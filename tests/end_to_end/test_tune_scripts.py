"""`corewise tune -- COMMAND` for unmodified scripts, which sleep depending on their environment."""

import json
import sys
from typing import Any

import pytest

from corewise.study.tuned_file import read_tuned
from tests.end_to_end.conftest import HAS_QUICKER, QUICKER, SHORT_SEARCH, Bench

SCRIPT = """
import itertools, os, signal, subprocess, sys, time

how, *more = sys.argv[1:]
pause_s = 0.005 if HAS_QUICKER else 0.03
if "deaf" in more:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "forks" in more:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
if how == "fail":
    sys.exit("there is no data")
if how == "report":
    import corewise
open("checkpoint", "x").close()  # fails in a folder of another start
for i in itertools.count():
    time.sleep(pause_s)
    if how == "report":
        corewise.report_progress(samples=4)
    elif how == "print" and i % 5 == 0:
        print(f"epoch 0: {4 / pause_s:,.1f} img/s")
    elif how == "end" and i == 10:
        break
""".replace("HAS_QUICKER", HAS_QUICKER)
FIXED = ("bind=none", "huge_pages=default", "wait_policy=default", "threads=1", "openmp=default")


def tune(bench: Bench, *arguments: str, budget: str = "100s", options: tuple[str, ...] = ()) -> Any:
    bench.write_factory(SCRIPT, "train.py")
    fixed = [part for each in FIXED for part in ("--set", each)]
    common = ("--store", "store", "--budget", budget, "--json", *fixed, *options)
    command = ("tune", *common, "--", sys.executable, "train.py", *arguments)
    return bench.run(*command, before=SHORT_SEARCH)


@pytest.mark.parametrize(
    ("arguments", "options"),
    [(("report", "forks", "deaf"), ()), (("print",), ("--throughput", "{} img/s"))],
    ids=["reports", "output"],
)
def test_the_faster_environment_is_found_and_nothing_is_left(
    bench: Bench, arguments: tuple[str, ...], options: tuple[str, ...]
) -> None:
    done = tune(bench, *arguments, options=options)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["best"]["params"]["allocator"] == QUICKER
    assert result["speedup"] > 1.5
    written = read_tuned(bench.folder / "tuned.yaml")
    assert written.subject.command == (sys.executable, "train.py", *arguments)
    assert (written.params["allocator"], written.params["processes"]) == (QUICKER, 1)
    # Each start had a new folder.
    assert not (bench.folder / "checkpoint").exists()
    assert bench.find_processes() == []


@pytest.mark.slow
def test_a_script_without_progress_is_timed_as_a_whole(bench: Bench) -> None:
    done = tune(bench, "end", options=("--set", "allocator=default"))
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["verdict"] == "no difference"
    # The unit is runs per second; a run has 11 pauses.
    assert 0 < result["default"]["throughput"] < 1 / 0.3


@pytest.mark.slow
def test_the_record_of_a_script_names_the_processes_that_it_left_behind(bench: Bench) -> None:
    done = tune(bench, "end", "forks", options=("--set", "allocator=default"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert bench.find_processes() == []
    [notes] = [record["notes"] for record in bench.read_records()]
    assert notes == ["the workload left processes behind, which were killed: 1 × python"]


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("fail",), (), "exit code 1): there is no data"),
        (("end",), ("--throughput", "{} img/s"), "anything that matches --throughput"),
        (("print",), ("--throughput", "img/s"), "mark the number with {}"),
        (("print",), ("--throughput", "({} img/s"), "not a regular expression"),
        (("report",), ("--distributed",), "{batch_per_rank}"),
        (("report", "{batch_per_rank}"), (), "give it with --batch"),
    ],
)
def test_a_script_that_cannot_be_tuned_is_reported_with_code_2(
    bench: Bench, arguments: tuple[str, ...], options: tuple[str, ...], message: str
) -> None:
    done = tune(bench, *arguments, options=options)
    assert done.returncode == 2, done.stdout + done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_unit_that_contradicts_its_option_is_refused_before_anything_runs(bench: Bench) -> None:
    done = tune(bench, "print", options=("--throughput", "time {}ms"))
    assert done.returncode == 2
    assert "is a time (ms)" in done.stderr
    assert "--step-time 'time {}ms'" in done.stderr
    done = tune(bench, "print", options=("--throughput", "{} img/s", "--step-time", "time {}ms"))
    assert done.returncode == 2
    assert "not both" in done.stderr


def test_a_script_whose_other_settings_all_fail_is_not_called_equal(bench: Bench) -> None:
    bench.write_factory(
        """
        import itertools, os, sys, time
        if "COREWISE_RANK" in os.environ:
            print("reading the configuration", file=sys.stderr)
            sys.exit("this works only without a launcher")
        for i in itertools.count():
            time.sleep(0.01)
            print(f"iter {i}: loss 4.2, time 10.00ms, mfu 3.10%")
        """,
        "fails.py",
    )
    done = bench.run("tune", "--budget", "60s", "--", sys.executable, "fails.py", before=SHORT_SEARCH)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Nothing could be compared" in done.stdout
    assert "No difference" not in done.stdout
    # The last lines show the reason.
    assert "| reading the configuration" in done.stdout
    assert "| this works only without a launcher" in done.stdout
    assert not (bench.folder / "tuned.yaml").exists()


PRINTERS = {
    "nanoGPT (time per iteration)": 'print(f"iter {i}: loss 4.2, time {1000 * pause_s:.2f}ms, mfu 3.10%")',
    "ms/batch": 'print(f"| epoch 1 | {i}/ 2983 batches | lr 20.00 | ms/batch {1000 * pause_s:5.2f} | loss 5.43")',
    "tqdm progress bar 'Epoch #'": "bar.update(1)",
}


@pytest.mark.parametrize(
    "name",
    [
        "nanoGPT (time per iteration)",
        pytest.param("ms/batch", marks=pytest.mark.slow),
        pytest.param("tqdm progress bar 'Epoch #'", marks=pytest.mark.slow),
    ],
)
def test_a_script_that_prints_times_is_tuned_as_it_is(bench: Bench, name: str) -> None:
    """It reads files by relative paths, starts distributed training if RANK is set, and saves a checkpoint."""
    (bench.folder / "data").mkdir()
    (bench.folder / "data" / "input.txt").write_text("0.03")
    bench.write_factory(
        f"""
        import itertools, os, time
        assert "RANK" not in os.environ and "WORLD_SIZE" not in os.environ
        pause_s = 0.005 if {HAS_QUICKER} else float(open("data/input.txt").read())
        os.makedirs("out", exist_ok=True)
        if {name.startswith("tqdm")}:
            import tqdm
            bar = tqdm.tqdm(desc="Epoch 1", total=1000000)
        for i in itertools.count():
            time.sleep(pause_s)
            open("out/ckpt.pt", "w").write(str(i))
            {PRINTERS[name]}
        """,
        "train.py",
    )
    fixed = [part for each in FIXED for part in ("--set", each)]
    command = ("tune", "--budget", "100s", "--json", *fixed, "--", sys.executable, "train.py")
    done = bench.run(*command, before=SHORT_SEARCH)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["best"]["params"]["allocator"] == QUICKER
    assert result["speedup"] > 1.5
    assert (result["unit"], result["throughput_source"]) == ("steps/s", name)
    assert sorted(each.name for each in bench.folder.iterdir()) == ["corewise-store", "data", "train.py", "tuned.yaml"]


@pytest.mark.slow
@pytest.mark.parametrize("verbose", [1, 2])
def test_real_keras_is_recognised(bench: Bench, verbose: int) -> None:
    pytest.importorskip("keras")
    bench.write_factory(
        f"""
        import os
        os.environ["KERAS_BACKEND"] = "torch"
        import keras, numpy
        model = keras.Sequential([keras.layers.Dense(64, activation="relu"), keras.layers.Dense(2)])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        inputs = numpy.random.default_rng(0).random((640, 20), dtype="float32")
        model.fit(inputs, (inputs.sum(1) > 10).astype("int64"), epochs=100000, verbose={verbose}, batch_size=32)
        """,
        "train.py",
    )
    result = tune_once(bench)
    assert result["throughput_source"] == ("Keras progress bar" if verbose == 1 else "Keras line per epoch")
    assert result["unit"] == "steps/s"


@pytest.mark.slow
@pytest.mark.parametrize(("num_steps", "has_bar"), [(1000000, True), (20, False)])
def test_the_real_trainer_of_transformers_is_recognised(bench: Bench, num_steps: int, has_bar: bool) -> None:
    for module in ("transformers", "accelerate"):
        pytest.importorskip(module)
    bench.write_factory(
        f"""
        import torch
        from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
        model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=100, n_positions=64))
        tokens = torch.randint(0, 100, (64, 32))
        data = [{{"input_ids": each, "labels": each}} for each in tokens]
        arguments = TrainingArguments(
            "out", max_steps={num_steps}, per_device_train_batch_size=4, logging_steps=20, report_to=[], use_cpu=True,
            save_strategy="no", disable_tqdm={not has_bar},
        )
        Trainer(model, arguments, train_dataset=data).train()
        """,
        "train.py",
    )
    result = tune_once(bench)
    assert ("tqdm" if has_bar else "train_samples_per_second") in result["throughput_source"]
    assert result["unit"] == ("steps/s" if has_bar else "samples/s")


def tune_once(bench: Bench) -> Any:
    """Tune with one other setting, and return the result."""
    fixed = [part for each in FIXED for part in ("--set", each)]
    command = ("tune", "--budget", "200s", "--json", *fixed, "--", sys.executable, "train.py")
    done = bench.run(*command, before=SHORT_SEARCH, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_a_command_that_does_not_exist_is_reported(bench: Bench) -> None:
    done = bench.run("tune", "--budget", "10s", "--", "./no-such-program")
    assert done.returncode == 2
    assert "cannot start ./no-such-program" in done.stderr


@pytest.mark.slow
def test_a_command_that_starts_to_fail_is_reported_and_not_called_equal(bench: Bench) -> None:
    """The fifth start, during the race of the second setting, and all later ones fail."""
    bench.write_factory(
        f"""
        import pathlib, sys
        count = pathlib.Path({str(bench.folder / "count")!r})
        count.write_text(count.read_text() + "." if count.exists() else ".")
        sys.exit("the disk is full" if len(count.read_text()) > 4 else 0)
        """,
        "fails.py",
    )
    fixed = [part for each in FIXED for part in ("--set", each)]
    arguments = ("tune", "--budget", "100s", *fixed, "--", sys.executable, "fails.py")
    done = bench.run(*arguments, before=SHORT_SEARCH)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "failed in a fresh start: it failed (exit code 1): the disk is full" in done.stderr
    assert "Traceback" not in done.stderr
