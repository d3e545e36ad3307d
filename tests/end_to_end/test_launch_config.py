"""A tuned file is used, refused on another machine with the differences, or adapted aloud."""

import dataclasses

import pytest

from corewise.launcher.adapt import read_fingerprint
from corewise.machine.allocation import read_allocation
from corewise.machine.topology import read_topology
from corewise.spec.tuned import Fingerprint, Subject, Tuned, write_tuned

from .conftest import Bench
from .test_launch import TELL, launch, python, told


def this_machine() -> Fingerprint:
    topology = read_topology()
    return read_fingerprint(topology, read_allocation(topology))


def tuned_file(bench: Bench, machine: Fingerprint, **params: object) -> str:
    environment = {"OMP_DYNAMIC": "false"}
    subject = Subject(workload="resnet50", mode="train")
    write_tuned(
        bench.folder / "tuned.yaml",
        Tuned(subject=subject, params=params, machine=machine, environment=environment),
    )
    return "tuned.yaml"


def test_the_settings_of_the_file_are_used(bench: Bench) -> None:
    code = (
        TELL
        + "print(json.dumps({'dynamic': os.environ['OMP_DYNAMIC'], 'wait': os.environ['OMP_WAIT_POLICY']}))"
    )
    config = tuned_file(bench, this_machine(), processes=1, threads=1, wait_policy="passive")
    done = launch(bench, "--config", config, *python(bench, code))
    told_by, variables = told(done)
    assert (told_by["OMP_NUM_THREADS"], told_by["RANK"], len(told_by["cpus"])) == ("1", None, 1)  # type: ignore[arg-type]
    assert variables == {"dynamic": "false", "wait": "PASSIVE"}
    assert done.stderr == ""


def test_a_file_with_changing_widths_sets_how_idle_threads_wait(bench: Bench) -> None:
    code = TELL + "print(json.dumps({n: os.environ.get(n) for n in ('GOMP_SPINCOUNT', 'MALLOC_MMAP_MAX_')}))"
    config = tuned_file(bench, this_machine(), processes=1, threads=1, execution="malleable")
    done = launch(bench, "--config", config, *python(bench, code))
    assert {"GOMP_SPINCOUNT": "300000", "MALLOC_MMAP_MAX_": "0"} in told(done)
    assert "model = corewise.malleable(model, (batch,))" in done.stderr


def test_processes_tuned_as_replicas_need_not_meet(bench: Bench) -> None:
    machine = this_machine()
    subject = Subject(workload="resnet50", mode="infer")
    params = {"processes": 2, "threads": 1, "oversubscribe": True}
    write_tuned(bench.folder / "tuned.yaml", Tuned(subject=subject, params=params, machine=machine))
    for option, ranks in (("--quiet", [None, None]), ("--rendezvous", ["0", "1"])):
        done = launch(bench, "--config", "tuned.yaml", option, *python(bench, TELL))
        assert [each["RANK"] for each in told(done)] == ranks


def test_options_go_over_the_file(bench: Bench) -> None:
    config = tuned_file(bench, this_machine(), processes=1, threads=1)
    words = ("--config", config, "-p", "2", "--oversubscribe")
    assert len(told(launch(bench, *words, *python(bench, TELL)))) == 2


def test_a_file_from_another_machine_is_refused_with_the_differences(bench: Bench) -> None:
    other = dataclasses.replace(this_machine(), cpu_model="Abacus 3000", nodes=((64, 128),))
    done = launch(bench, "--config", tuned_file(bench, other, processes=4, threads=16), "--", "true")
    assert done.returncode == 2
    assert "tuned.yaml was tuned on another machine:\n  processor: tuned on Abacus 3000, here" in done.stderr
    assert "allocation: tuned on 64 cores, 128 CPUs on 1 NUMA node, here" in done.stderr
    assert "--adapt" in done.stderr


def test_an_adapted_file_is_planned_anew_and_says_how(bench: Bench) -> None:
    num_cores = this_machine().num_cores
    other = dataclasses.replace(this_machine(), nodes=((8 * num_cores, 8 * num_cores),))
    config = tuned_file(bench, other, processes=1, threads=8 * num_cores)
    done = launch(bench, "--config", config, "--adapt", *python(bench, TELL))
    [only] = told(done)
    assert only["OMP_NUM_THREADS"] == str(num_cores)
    assert f"adapted processes × threads: 1 × {8 * num_cores} on {8 * num_cores} cores become" in done.stderr


def test_what_only_code_can_apply_is_told_once(bench: Bench) -> None:
    config = tuned_file(
        bench, this_machine(), processes=2, threads=1, memory_format="channels_last", oversubscribe=True
    )
    done = launch(bench, "--config", config, "--", "true")
    assert done.returncode == 0
    assert (
        done.stderr.count("only your code can apply memory_format: channels_last\n  model = model.to(") == 1
    )
    assert launch(bench, "--quiet", "--config", config, "--", "true").stderr == ""


def test_the_batch_to_set_in_code_is_that_of_the_processes_which_start(bench: Bench) -> None:
    config = tuned_file(bench, this_machine(), processes=2, threads=1, batch=8, batch_scope="global")
    said = launch(bench, "--config", config, "--oversubscribe", "--", "true").stderr
    assert "batch_size=4 in each of the 2 processes" in said
    assert "batch_size" not in launch(bench, "--config", config, "-p", "1", "--", "true").stderr


def test_loader_workers_that_a_variable_tells_are_not_left_to_the_code(bench: Bench) -> None:
    variables = {"COREWISE_LOADER_WORKERS": "2"}
    subject = Subject(command=("python", "train.py"))
    params = {"processes": 1, "threads": 1, "loader_workers": 2}
    tuned = Tuned(subject=subject, params=params, machine=this_machine(), environment=variables)
    write_tuned(bench.folder / "tuned.yaml", tuned)
    code = "import os; print(os.environ['COREWISE_LOADER_WORKERS'])"
    done = launch(bench, "--config", "tuned.yaml", *python(bench, code))
    assert (done.stdout, done.stderr) == ("2\n", "")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("schema: 9\n", "tuned.yaml:1: schema 9 is newer than this Corewise reads"),
        ("schema: 1\nparams: {threds: 2}\n", "tuned.yaml:2: unknown axis 'threds'; did you mean 'threads'?"),
        ("\tx", "not valid YAML"),
    ],
)
def test_a_file_that_makes_no_sense_is_told(text: str, what: str, bench: Bench) -> None:
    (bench.folder / "tuned.yaml").write_text(text)
    done = launch(bench, "--config", "tuned.yaml", "--", "true")
    assert done.returncode == 2
    assert what in done.stderr


def test_a_file_that_cannot_be_read_is_told(bench: Bench) -> None:
    (bench.folder / "folder").mkdir()
    done = launch(bench, "--config", "folder", "--", "true")
    assert (done.returncode, "Is a directory" in done.stderr) == (2, True)
