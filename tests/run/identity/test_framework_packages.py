"""The packages of each runtime."""

import sys

from corewise.measured.runtimes.registry import BUILT_IN
from corewise.measured.worker.main import probe
from corewise.run.identity.framework_packages import FRAMEWORKS, list_framework_versions, suggest_install
from corewise.run.machine_view import Interpreter
from corewise.study.axes import RUNTIMES


def make_interpreter(**packages: str) -> Interpreter:
    return Interpreter((sys.executable,), "3.11.0", sys.prefix, packages)


def test_every_built_in_runtime_is_known() -> None:
    assert set(FRAMEWORKS) == set(RUNTIMES) == set(BUILT_IN)


def test_a_missing_framework_names_the_command_that_installs_it() -> None:
    here = make_interpreter(numpy="2.0")
    assert suggest_install("numpy", here) == ""
    assert suggest_install("jax", here) == "pip install 'corewise[jax]'"
    assert suggest_install("tensorflow", here) == "pip install 'corewise[tensorflow]'"
    assert suggest_install("of another package", here) == ""


def test_versions_of_related_packages_are_listed() -> None:
    found = list_framework_versions("jax", make_interpreter(jax="0.10.2", jaxlib="0.10.1", numpy="2.0"))
    assert (found["jax"], found["jaxlib"]) == ("0.10.2", "0.10.1")
    assert "numpy" not in found
    assert list_framework_versions("tensorflow", make_interpreter()) == {"tensorflow": "absent"}


def test_every_build_of_tensorflow_is_found_under_one_name() -> None:
    from importlib.metadata import distributions

    names = {each.metadata["Name"].lower().replace("_", "-") for each in distributions()}
    found = probe()["packages"]
    assert isinstance(found, dict)
    assert ("tensorflow" in found) == bool(names & {"tensorflow", "tensorflow-cpu"})
