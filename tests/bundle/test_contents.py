"""The rendered texts of a bundle and its container definition."""

from pathlib import Path

import pytest

from corewise.bundle.bundle_maker import BundleResult
from corewise.bundle.contents import Bundle, choose_base_image, describe_missing_package, render_files
from corewise.bundle.target import Target

GOLDEN = Path(__file__).parent / "golden"
BUNDLE = Bundle(
    corewise="1.2.3",
    python="3.12",
    machine="x86_64",
    glibc="2.27",
    worker_only=False,
    frameworks=(),
    install=("corewise==1.2.3",),
    made_at="2026-01-01T00:00:00+00:00",
    packages=(),
)


@pytest.mark.parametrize("name", ["corewise.def", "README.txt"])
def test_a_text_matches_its_golden_file(name: str) -> None:
    rendered = render_files(BUNDLE, choose_base_image(Target("3.12", "x86_64")))
    assert rendered[name] == (GOLDEN / name).read_text()


@pytest.mark.parametrize(
    ("image", "bootstrap", "base"),
    [
        ("docker://nvcr.io/nvidia/pytorch:26.01-py3", "docker", "nvcr.io/nvidia/pytorch:26.01-py3"),
        ("python:3.12", "docker", "python:3.12"),
        ("/images/base.sif", "localimage", "/images/base.sif"),
        ("localimage:///images/base", "localimage", "/images/base"),
    ],
)
def test_the_base_image_can_be_chosen(image: str, bootstrap: str, base: str) -> None:
    lines = [line.strip() for line in render_files(BUNDLE, image)["corewise.def"].splitlines()]
    assert f"BOOTSTRAP={bootstrap}" in lines
    assert f"BASE={base}" in lines


def test_the_definition_copies_every_file_of_the_bundle(worker: BundleResult) -> None:
    text = (worker.folder / "corewise.def").read_text()
    section = text.partition("%files\n")[2].partition("\n\n")[0]
    copied = {line.split()[0] for line in section.splitlines()}
    assert copied == {path.name for path in worker.folder.iterdir()}


def test_only_packages_that_a_worker_leaves_out_are_explained() -> None:
    message = describe_missing_package(ModuleNotFoundError("No module named 'vl_convert'", name="vl_convert"))
    assert message is not None
    assert "vl_convert" in message
    assert "worker-only" in message
    for name in ("yaml", "corewise.stats.gone", "corewise", None):
        assert describe_missing_package(ModuleNotFoundError("No module", name=name)) is None


def test_every_file_of_a_bundle_is_explained(worker: BundleResult) -> None:
    page = (Path(__file__).parents[2] / "docs/air-gapped.md").read_text()
    rows = page.partition("| file | what it is |")[2].partition("\n\n")[0].splitlines()[2:]
    assert {row.split("`")[1] for row in rows} == {path.name for path in worker.folder.iterdir()}
