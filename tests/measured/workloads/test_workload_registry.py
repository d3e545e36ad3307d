"""Finding workloads by name, built-in ones and those of other packages."""

import subprocess
import sys
from pathlib import Path

import pytest

from corewise.measured.workloads.registry import UnknownName, find_workload, list_workloads

PLUG_IN = """
from corewise.measured.workloads.models.image_model import ImageModel
from corewise.measured.workloads.models.layers import AdaptiveAvgPool, Flatten, Linear, Sequence

TINY = ImageModel("tiny", "linear", lambda n: Sequence((AdaptiveAvgPool(1), Flatten(), Linear(3, n))))
"""


def test_an_unknown_workload_suggests_the_nearest() -> None:
    with pytest.raises(UnknownName, match="unknown workload 'resnet5'; did you mean 'resnet50'"):
        find_workload("resnet5")


def test_a_hopeless_name_lists_all_that_are_known() -> None:
    with pytest.raises(LookupError, match=r"known: alexnet, .*inception_v3, .*wide_resnet101_2"):
        find_workload("zzz")


def test_the_list_names_every_workload_with_its_size() -> None:
    rows = {row.name: row for row in list_workloads()}
    assert rows["resnet50"].num_parameters == 25_557_032
    assert rows["resnet50"].modes == ("train", "infer")
    assert rows["matmul"].runtimes == ("numpy", "torch", "jax", "tensorflow")
    assert all(row.summary for row in rows.values())


def test_a_path_and_a_function_name_a_custom_workload() -> None:
    workload = find_workload("some/where/mine.py:make")
    assert workload.name == "some/where/mine.py:make"
    assert workload.count_work("train", {"anything": 1}).num_parameters == 0


def test_another_package_adds_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "corewise_plug_in.py").write_text(PLUG_IN)
    metadata = tmp_path / "corewise_plug_in-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: corewise-plug-in\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[corewise.workloads]\ntiny = corewise_plug_in:TINY\nbroken = corewise_plug_in:ABSENT\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_workload("tiny").count_work("infer", {}).num_parameters == 4000
    rows = {row.name: row for row in list_workloads()}
    assert rows["tiny"].summary == "linear"
    assert rows["broken"].summary.startswith("cannot be loaded")
    assert rows["broken"].num_parameters is None


def test_listing_workloads_imports_no_framework() -> None:
    program = (
        "import sys; from corewise.measured.workloads.registry import list_workloads; list_workloads(); "
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'torch', 'tensorflow', 'jax'}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
