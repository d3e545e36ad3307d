"""`corewise shapes`: JSON, page, terminal, and messages that say what to do."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("PIL")
from typer.testing import CliRunner, Result

from corewise.cli.app import build_app, run_command_line

APP = build_app(["shapes", "doctor"])


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from corewise.batching import generate_collection

    folder = tmp_path_factory.mktemp("shapes") / "images"
    generate_collection(folder, 60, seed=2, mean_megapixels=0.01)
    return folder


def run(*args: object) -> Result:
    return CliRunner().invoke(APP, ["shapes", *map(str, args)])


def answer(*args: object) -> Any:
    result = run(*args, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_json_holds_images_policies_and_the_recommendation(folder: Path) -> None:
    found = answer(folder, "--batch", 4, "--ranks", 2)
    assert found["images"]["num_images"] == 60
    assert set(found["policies"]) == {"random", "sorted", "bucket", "budget", "pack"}
    for policy in found["policies"].values():
        assert 0 <= policy["padding_share"] < 1
        assert policy["batches"] % 2 == 0
        assert policy["max_pixels"] > 0
    recommended = found["recommended"]
    best = found["policies"][recommended["policy"]]
    assert best["padding_share"] < found["policies"]["random"]["padding_share"]


def test_all_policies_keep_the_asked_memory(folder: Path) -> None:
    found = answer(folder, "--max-pixels", "200k")
    assert all(policy["max_pixels"] <= 200_000 for policy in found["policies"].values())


def test_the_code_to_paste_runs(folder: Path) -> None:
    pytest.importorskip("torch")
    found = answer(folder, "--batch", 8)
    code = found["recommended"]["code"].replace("range(10)", "range(1)").replace("num_workers=2", "num_workers=0")
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["labels"].shape[0] == names["images"].shape[0]


def test_the_page_holds_charts_and_code(folder: Path, tmp_path: Path) -> None:
    result = run(folder, "--batch", 4, "--report", tmp_path / "shapes.html")
    assert result.exit_code == 0, result.output
    page = (tmp_path / "shapes.html").read_text()
    assert "Sizes of the images" in page
    assert "batch_sampler=sampler" in page
    assert not re.search(r'src="http', page)


def test_the_terminal_shows_a_plot_a_table_and_the_code(folder: Path) -> None:
    output = run(folder, "--batch", 4, "--seconds-per-megapixel", 2).output
    assert "height └" in output
    assert re.search(r"^bucket +\d", output, re.MULTILINE)
    assert "epoch" in output
    assert "ShapeBatchSampler" in output


def test_images_all_alike_need_no_other_policy(tmp_path: Path) -> None:
    from tests.accelerate.batching.sample_images import write_image

    for number in range(10):
        write_image(tmp_path / f"{number}.png")
    assert answer(tmp_path, "--batch", 4)["recommended"]["policy"] == "random"


def test_generated_images_are_shown_at_once(tmp_path: Path) -> None:
    found = answer(tmp_path / "new", "--generate", 12, "--mean-megapixels", 0.01, "--batch", 4)
    assert found["images"]["num_images"] == 12


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--batch", "0"], "--batch 0: at least 1"),
        (["--batch", "4", "--max-pixels", "1M"], "exclude each other"),
        (["--max-pixels", "many"], "such as 20M"),
        (["--ranks", "61"], "use at most 60"),
        (["--seed", "-1"], "at least 0"),
        (["--gb-per-megapixel", "0"], "positive"),
        (["--generate", "5"], "not an empty folder"),
        (["--mean-megapixels", "5"], "--generate"),
        (["--report", "/absent/shapes.html"], "folder /absent does not exist"),
    ],
)
def test_mistakes_are_explained(
    folder: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command_line(["shapes", str(folder), *options]) == 2
    assert message in capsys.readouterr().err


def test_a_folder_without_images_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "cut.jpg").write_bytes(b"\xff\xd8")
    assert run_command_line(["shapes", str(tmp_path)]) == 2
    message = capsys.readouterr().err
    assert "holds no image that can be read" in message
    assert "cut.jpg" in message
