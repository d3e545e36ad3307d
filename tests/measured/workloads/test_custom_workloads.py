"""A user's workload: accepted forms, and how its errors are reported."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from corewise.measured.runtimes.base import WorkloadError
from corewise.measured.workloads.custom import CustomModule, CustomStep, build_custom, is_custom, load_imports

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a file with a factory `make` and names the workload."""

    def write_file(source: str, factory: str = "make") -> str:
        (tmp_path / "mine.py").write_text(source)
        return f"{tmp_path / 'mine.py'}:{factory}"

    return write_file


@pytest.mark.parametrize(
    ("name", "custom"),
    [
        ("a/b.py:make", True),
        ("b.py:make_it", True),
        ("resnet50", False),
        ("a.py", False),
        ("a.py:", False),
        ("a.txt:make", False),
        ("a.py:no-name", False),
    ],
)
def test_only_a_python_file_and_a_function_make_a_custom_name(name: str, custom: bool) -> None:
    assert is_custom(name) is custom


def test_the_factory_is_given_batch_mode_and_arguments(write: Write) -> None:
    name = write("def make(batch, mode, width):\n    return {'step': print, 'samples_per_step': batch * width}\n")
    made = build_custom(name, 4, "infer", {"width": 3})
    assert isinstance(made, CustomStep)
    assert made.samples_per_step == 12


def test_a_step_counts_the_batch_when_it_does_not_say_how_many_samples(write: Write) -> None:
    made = build_custom(write("def make(batch, mode):\n    return {'step': print}\n"), 5, "infer", {})
    assert isinstance(made, CustomStep)
    assert made.samples_per_step == 5
    assert made.check is None


def test_an_object_with_a_step_is_accepted(write: Write) -> None:
    name = write("class Mine:\n    def step(self): pass\n\ndef make(batch, mode):\n    return Mine()\n")
    assert isinstance(build_custom(name, 2, "train", {}), CustomStep)


def test_a_module_with_inputs_and_targets_is_unpacked(write: Write) -> None:
    made = build_custom(write("def make(batch, mode):\n    return 'module', ('x', 'y'), 'targets'\n"), 1, "train", {})
    assert made == CustomModule("module", ("x", "y"), "targets")


def test_the_file_may_import_its_neighbours(write: Write, tmp_path: Path) -> None:
    (tmp_path / "my_neighbour.py").write_text("SAMPLES = 7\n")
    name = write("import my_neighbour\ndef make(batch, mode):\n    return {'step': print, 'samples_per_step': 7}\n")
    made = build_custom(name, 1, "infer", {})
    assert isinstance(made, CustomStep)
    assert made.samples_per_step == 7
    assert str(tmp_path) not in sys.path


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def make(batch, mode):\n    return 1 / 0\n", r"mine\.py:make failed in line 2: ZeroDivisionError: division"),
        ("import no_such_module\n", r"line 1: ModuleNotFoundError: No module named 'no_such_module'"),
        ("def make(batch, mode:\n", r"mine\.py:make failed: SyntaxError"),
        ("def make(batch):\n    return 1\n", r"make\(\) takes 1 positional.*; it is called with batch, mode and"),
        ("def other(batch, mode):\n    return 1\n", r"defines no function 'make'; it defines other"),
        ("def make(batch, mode):\n    return None\n", r"make returned NoneType None; a factory returns"),
        ("def make(batch, mode):\n    return {'stepp': print}\n", r"make returned dict .*; a factory returns"),
        (
            "def make(batch, mode):\n    return {'step': print, 'samples_per_step': -1}\n",
            r"must be a number greater than 0",
        ),
        ("def make(batch, mode):\n    return {'step': print, 'check': 0.5}\n", r"check must be a callable"),
    ],
)
def test_a_faulty_factory_is_reported_with_file_function_and_reason(write: Write, source: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        build_custom(write(source), 1, "infer", {})


def test_a_missing_file_is_named() -> None:
    with pytest.raises(WorkloadError, match=r"file /nowhere/at/all\.py does not exist"):
        build_custom("/nowhere/at/all.py:make", 1, "infer", {})


def test_system_exit_passes_to_the_caller(write: Write) -> None:
    with pytest.raises(SystemExit) as left:
        build_custom(write("import sys\ndef make(batch, mode):\n    sys.exit(3)\n"), 1, "infer", {})
    assert left.value.code == 3


def test_imports_are_loaded_with_names_that_are_modules_and_errors_are_left_to_the_file(tmp_path: Path) -> None:
    for name in ("wsgiref.headers", "wsgiref"):
        sys.modules.pop(name, None)
    load_imports(["no_such_package:Thing", "wsgiref:headers", "json:JSONDecoder"])
    assert "wsgiref.headers" in sys.modules
