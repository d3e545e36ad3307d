"""What a runtime is installed as."""

import sys

from corewise.engine.frameworks import FRAMEWORKS, framework_versions, missing_framework
from corewise.engine.machine_view import Interpreter
from corewise.runtimes.registry import BUILT_IN
from corewise.spec.axes import RUNTIMES
from corewise.worker.main import probe


def with_packages(**packages: str) -> Interpreter:
    return Interpreter((sys.executable,), "3.11.0", sys.prefix, packages)


def test_every_runtime_of_ours_is_known() -> None:
    assert set(FRAMEWORKS) == set(RUNTIMES) == set(BUILT_IN)


def test_a_missing_framework_names_the_command_that_installs_it() -> None:
    here = with_packages(numpy="2.0")
    assert missing_framework("numpy", here) == ""
    assert missing_framework("jax", here) == "pip install 'corewise[jax]'"
    assert missing_framework("tensorflow", here) == "pip install 'corewise[tensorflow]'"
    assert missing_framework("of another package", here) == ""


def test_the_versions_that_decide_speed_are_part_of_an_identity() -> None:
    found = framework_versions("jax", with_packages(jax="0.10.2", jaxlib="0.10.1", numpy="2.0"))
    assert (found["jax"], found["jaxlib"]) == ("0.10.2", "0.10.1")
    assert "numpy" not in found
    assert framework_versions("tensorflow", with_packages()) == {"tensorflow": "absent"}


def test_every_build_of_tensorflow_is_found_under_its_one_name() -> None:
    from importlib.metadata import distributions

    names = {each.metadata["Name"].lower().replace("_", "-") for each in distributions()}
    found = probe()["packages"]
    assert isinstance(found, dict)
    assert ("tensorflow" in found) == bool(names & {"tensorflow", "tensorflow-cpu"})
