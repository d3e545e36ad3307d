"""The real pip fetches for another machine, and its complaints say what to do."""

import platform
from pathlib import Path

import pytest
from bundling import make_wheel, only_from
from packaging.requirements import Requirement

from corewise.bundle.make import Order, make_bundle
from corewise.bundle.pip_download import Source, download, failure
from corewise.bundle.target import Target
from corewise.bundle.wishes import make_wishes
from corewise.spec.errors import UserError

ARM = Target("3.13", "aarch64", (2, 28))


@pytest.fixture
def house(tmp_path: Path, no_index: None) -> Path:
    return tmp_path / "house"


def fetch(house: Path, *requirements: str, target: Target = ARM, source: Source | None = None) -> list[str]:
    folder = house.parent / "fetched"
    told: list[str] = []
    download(requirements, folder, target, source or only_from(house), told.append)
    assert told
    return sorted(path.name for path in folder.glob("*.whl"))


def test_wheels_for_another_python_and_processor_are_chosen(house: Path) -> None:
    for tag in (
        "cp313-cp313-manylinux_2_17_aarch64",
        "cp313-cp313-manylinux_2_17_x86_64",
        "cp312-cp312-linux_aarch64",
    ):
        make_wheel(house, "alpha", "1.0", tag=tag)
    make_wheel(house, "alpha", "2.0", tag="cp313-cp313-manylinux_2_34_aarch64")  # too new a glibc
    assert fetch(house, "alpha") == ["alpha-1.0-cp313-cp313-manylinux_2_17_aarch64.whl"]


def test_a_package_without_a_wheel_for_the_target_is_named(house: Path) -> None:
    make_wheel(house, "alpha", "1.0", ("beta>=2",))
    make_wheel(house, "beta", "2.0", tag="cp312-cp312-manylinux_2_17_x86_64")
    with pytest.raises(UserError, match=r"no wheel of beta\S* for Python 3.13 on aarch64 with glibc 2.28"):
        fetch(house, "alpha")


def test_requirements_that_do_not_fit_together_are_shown(house: Path) -> None:
    make_wheel(house, "alpha", "1.0", ("gamma==1",))
    make_wheel(house, "beta", "1.0", ("gamma==2",))
    for version in ("1.0", "2.0"):
        make_wheel(house, "gamma", version)
    with pytest.raises(UserError, match=r"(?s)fits together:.*gamma==1.*gamma==2"):
        fetch(house, "alpha", "beta")


def test_constraints_hold(house: Path) -> None:
    for version in ("1.0", "2.0"):
        make_wheel(house, "gamma", version)
    constraints = house / "constraints.txt"
    constraints.write_text("gamma<2\n")
    source = Source(find_links=(str(house),), constraints=constraints)
    assert fetch(house, "gamma", source=source) == ["gamma-1.0-py3-none-any.whl"]


def test_an_index_that_cannot_be_reached_is_told_apart_from_a_missing_wheel(
    house: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(UserError, match="index cannot be reached"):
        fetch(house, "alpha", source=Source(index_url="http://127.0.0.1:9/simple"))


def test_a_full_disk_and_other_complaints_are_told() -> None:
    assert "disk is full" in str(failure("ERROR: [Errno 28] No space left on device\n", ARM))
    assert "something else" in str(failure("ERROR: something else\n", ARM))


def test_what_only_the_target_needs_is_fetched_too_and_what_only_we_need_is_dropped(house: Path) -> None:
    """pip reads `; platform_machine` by the machine it runs on: here x86_64 or not, there aarch64."""
    target = Target("3.13", "ppc64le" if platform.machine() == "aarch64" else "aarch64", (2, 28))
    requires = [
        f'{name}; platform_machine {sign} "{target.machine}"'
        for name, sign in (("there", "=="), ("here", "!="))
    ]
    make_wheel(house, "framework", "1.0", tuple(requires))
    own = [Requirement(root).name for root in make_wishes(target, (), False).roots]
    for name in (*own, "there", "here"):
        make_wheel(house, name.replace("-", "_"), "99.0")
    folder = house.parent / "bundle"
    order = Order(folder=folder, target=target, frameworks=("framework==1.0",), source=only_from(house))
    made = make_bundle(order, lambda text: None)
    names = {packed.name for packed in made.bundle.packages}
    assert {"framework", "there"} <= names
    assert "here" not in names
    assert made.bundle.install[1:] == ("framework==1.0",)
