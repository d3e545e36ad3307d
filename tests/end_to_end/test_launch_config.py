"""A tuned file is used, refused on another machine with the differences, or adapted with a message."""

import dataclasses

import pytest

from corewise.launch.tuned_file_fit import read_fingerprint
from corewise.machine.allocation import read_allocation
from corewise.machine.topology import read_topology
from corewise.study.tuned_file import MachineFingerprint, TunedSettings, TuningSubject, write_tuned

from .conftest import Bench
from .test_launch import REPORT, launch, parse_reports, write_script


def read_machine() -> MachineFingerprint:
    topology = read_topology()
    return read_fingerprint(topology, read_allocation(topology))


def write_tuned_file(
    bench: Bench, machine: MachineFingerprint, environment: dict[str, str] | None = None, **params: object
) -> str:
    subject = TuningSubject(workload="resnet50", mode="train")
    write_tuned(
        bench.folder / "tuned.yaml",
        TunedSettings(
            subject=subject, params=params, machine=machine, environment=environment or {"OMP_DYNAMIC": "false"}
        ),
    )
    return "tuned.yaml"


def test_the_settings_of_the_file_are_used(bench: Bench) -> None:
    code = REPORT + "print(json.dumps({'dynamic': os.environ['OMP_DYNAMIC'], 'wait': os.environ['OMP_WAIT_POLICY']}))"
    config = write_tuned_file(bench, read_machine(), processes=1, threads=1, wait_policy="passive")
    done = launch(bench, "--config", config, *write_script(bench, code))
    report, variables = parse_reports(done)
    assert (report["OMP_NUM_THREADS"], report["RANK"], len(report["cpus"])) == ("1", None, 1)  # type: ignore[arg-type]
    assert variables == {"dynamic": "false", "wait": "PASSIVE"}
    assert done.stderr == ""


@pytest.mark.parametrize("name", ["LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH", "PYTHONPATH", "OMP_TOOL_LIBRARIES"])
def test_variables_that_load_code_need_consent(bench: Bench, name: str) -> None:
    value = str(bench.folder / "theirs")
    config = write_tuned_file(bench, read_machine(), environment={name: value, "OMP_DYNAMIC": "false"}, threads=1)
    program = write_script(bench, f"import os; print(os.environ.get({name!r}), os.environ['OMP_DYNAMIC'])")
    refused = launch(bench, "--config", config, *program)
    message = f"tuned.yaml: its environment can load code or change more than speed:\n  {name}='{value}'\n"
    assert (refused.returncode, refused.stdout) == (2, "")
    assert message in refused.stderr
    assert "--trust-environment" in refused.stderr
    assert "OMP_DYNAMIC" not in refused.stderr
    dry = launch(bench, "--config", config, "--dry-run", *program)
    assert (dry.returncode, message in dry.stderr, f"{name}={value}" in dry.stdout) == (0, True, True)
    trusted = launch(bench, "--config", config, "--trust-environment", *program)
    assert trusted.stdout == f"{value} false\n"
    assert f"tuned.yaml sets, as you allow:\n  {name}='{value}'" in trusted.stderr
    # What the user types replaces the value of the file.
    own = launch(bench, "--config", config, "--env", f"{name}=", *program)
    assert (own.stdout, "theirs" in own.stderr) == (" false\n", False)


def test_a_file_cannot_name_the_library_to_preload(bench: Bench) -> None:
    library = bench.folder / "evil.so"
    library.touch()
    config = write_tuned_file(bench, read_machine(), threads=1, allocator=str(library))
    refused = launch(bench, "--config", config, "--", "true")
    assert refused.returncode == 2
    assert f"unknown value '{library}' of allocator" in refused.stderr


def test_a_file_with_malleable_execution_sets_how_idle_threads_wait(bench: Bench) -> None:
    code = REPORT + "print(json.dumps({n: os.environ.get(n) for n in ('GOMP_SPINCOUNT', 'MALLOC_MMAP_MAX_')}))"
    config = write_tuned_file(bench, read_machine(), processes=1, threads=1, execution="malleable")
    done = launch(bench, "--config", config, *write_script(bench, code))
    assert {"GOMP_SPINCOUNT": "300000", "MALLOC_MMAP_MAX_": "0"} in parse_reports(done)
    assert "model = corewise.malleable(model, (batch,))" in done.stderr


def test_processes_tuned_as_replicas_get_no_rendezvous(bench: Bench) -> None:
    machine = read_machine()
    subject = TuningSubject(workload="resnet50", mode="infer")
    params = {"processes": 2, "threads": 1, "oversubscribe": True}
    write_tuned(bench.folder / "tuned.yaml", TunedSettings(subject=subject, params=params, machine=machine))
    for option, ranks in (("--quiet", [None, None]), ("--rendezvous", ["0", "1"])):
        done = launch(bench, "--config", "tuned.yaml", option, *write_script(bench, REPORT))
        assert [each["RANK"] for each in parse_reports(done)] == ranks


def test_options_override_the_file(bench: Bench) -> None:
    config = write_tuned_file(bench, read_machine(), processes=1, threads=1)
    arguments = ("--config", config, "-p", "2", "--oversubscribe")
    assert len(parse_reports(launch(bench, *arguments, *write_script(bench, REPORT)))) == 2


def test_a_file_from_another_machine_is_refused_with_the_differences(bench: Bench) -> None:
    other = dataclasses.replace(read_machine(), cpu_model="Abacus 3000", nodes=((64, 128),))
    done = launch(bench, "--config", write_tuned_file(bench, other, processes=4, threads=16), "--", "true")
    assert done.returncode == 2
    assert "tuned.yaml was tuned on another machine:\n  processor: tuned on Abacus 3000, here" in done.stderr
    assert "allocation: tuned on 64 cores, 128 CPUs on 1 NUMA node, here" in done.stderr
    assert "--adapt" in done.stderr


def test_an_adapted_file_reports_its_changes(bench: Bench) -> None:
    num_cores = read_machine().num_cores
    other = dataclasses.replace(read_machine(), nodes=((8 * num_cores, 8 * num_cores),))
    config = write_tuned_file(bench, other, processes=1, threads=8 * num_cores)
    done = launch(bench, "--config", config, "--adapt", *write_script(bench, REPORT))
    [only] = parse_reports(done)
    assert only["OMP_NUM_THREADS"] == str(num_cores)
    assert f"adapted processes × threads: 1 × {8 * num_cores} on {8 * num_cores} cores become" in done.stderr


def test_settings_that_only_code_can_apply_are_reported_once(bench: Bench) -> None:
    config = write_tuned_file(
        bench, read_machine(), processes=2, threads=1, memory_format="channels_last", oversubscribe=True
    )
    done = launch(bench, "--config", config, "--", "true")
    assert done.returncode == 0
    assert done.stderr.count("only your code can apply memory_format: channels_last\n  model = model.to(") == 1
    assert launch(bench, "--quiet", "--config", config, "--", "true").stderr == ""


def test_the_reported_batch_is_that_of_the_started_processes(bench: Bench) -> None:
    config = write_tuned_file(bench, read_machine(), processes=2, threads=1, batch=8, batch_scope="global")
    message = launch(bench, "--config", config, "--oversubscribe", "--", "true").stderr
    assert "batch_size=4 in each of the 2 processes" in message
    assert "batch_size" not in launch(bench, "--config", config, "-p", "1", "--", "true").stderr


def test_loader_workers_set_by_a_variable_are_not_reported(bench: Bench) -> None:
    variables = {"COREWISE_LOADER_WORKERS": "2"}
    subject = TuningSubject(command=("python", "train.py"))
    params = {"processes": 1, "threads": 1, "loader_workers": 2}
    tuned = TunedSettings(subject=subject, params=params, machine=read_machine(), environment=variables)
    write_tuned(bench.folder / "tuned.yaml", tuned)
    code = "import os; print(os.environ['COREWISE_LOADER_WORKERS'])"
    done = launch(bench, "--config", "tuned.yaml", *write_script(bench, code))
    assert (done.stdout, done.stderr) == ("2\n", "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("schema: 9\n", "tuned.yaml:1: schema 9 is newer than this Corewise reads"),
        ("schema: 1\nparams: {threds: 2}\n", "tuned.yaml:2: unknown axis 'threds'; did you mean 'threads'?"),
        ("\tx", "not valid YAML"),
    ],
)
def test_an_invalid_file_is_reported(text: str, message: str, bench: Bench) -> None:
    (bench.folder / "tuned.yaml").write_text(text)
    done = launch(bench, "--config", "tuned.yaml", "--", "true")
    assert done.returncode == 2
    assert message in done.stderr


def test_an_unreadable_file_is_reported(bench: Bench) -> None:
    (bench.folder / "folder").mkdir()
    done = launch(bench, "--config", "folder", "--", "true")
    assert (done.returncode, "Is a directory" in done.stderr) == (2, True)
