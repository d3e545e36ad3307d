"""Commands of kernels set the threads of libraries, and let idle threads sleep on shared CPUs."""

import os

import pytest

from corewise.measured.workloads.kernels.thread_variables import NUM_THREADS, PASSIVE_WAITING, set_thread_variables


def set_variables(num_threads: int | None, *, is_busy: bool, **given: str) -> dict[str, str]:
    environment = dict(given)
    set_thread_variables(num_threads, environment, check_load=lambda cpus: is_busy)
    return environment


def test_on_quiet_cpus_only_the_number_of_threads_is_set() -> None:
    assert set_variables(2, is_busy=False) == dict.fromkeys(NUM_THREADS, "2")
    assert set_variables(None, is_busy=False) == {}


def test_on_shared_cpus_idle_threads_sleep() -> None:
    assert set_variables(2, is_busy=True) == {**dict.fromkeys(NUM_THREADS, "2"), **PASSIVE_WAITING}
    assert "OMP_WAIT_POLICY=PASSIVE" in set_thread_variables(2, {}, check_load=lambda cpus: True)
    assert set_thread_variables(2, {}, check_load=lambda cpus: False) == ""
    assert "OMP_WAIT_POLICY" not in set_variables(1, is_busy=True)


@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OPENBLAS_THREAD_TIMEOUT"])
def test_a_policy_that_the_user_set_stays(name: str) -> None:
    environment = set_variables(2, is_busy=True, **{name: "17"})
    assert environment == {**dict.fromkeys(NUM_THREADS, "2"), name: "17"}


def test_the_process_itself_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NUM_THREADS:
        monkeypatch.setenv(name, "7")
    set_thread_variables(3, check_load=lambda cpus: False)
    assert os.environ["OMP_NUM_THREADS"] == "3"


def test_how_threads_wait_is_no_condition_of_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    from corewise.measured.workloads.kernels.cg.system import describe_libraries

    before = describe_libraries("numpy")
    for name, value in PASSIVE_WAITING.items():
        monkeypatch.setenv(name, value)
    assert describe_libraries("numpy") == before
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Prescott")
    assert describe_libraries("numpy") != before
