"""`corewise report`: a page, figures, or JSON; errors reported before any work."""

import json
import os
from pathlib import Path

import pytest
from tests.report.sample_trials import REAL_STORE, scaling, write_store
from typer.testing import CliRunner

from corewise.cli.app import build_app
from corewise.errors import UserError

APP = build_app()

run = CliRunner()


def report(*arguments: object) -> str:
    """What the verb prints on standard output; a user's mistake is raised."""
    done = run.invoke(APP, ["report", *map(str, arguments)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return write_store(tmp_path / "store", *scaling())


def test_a_page_is_written(store: Path, tmp_path: Path) -> None:
    report("--store", store, "-o", tmp_path / "out.html", "--title", "Threads & more")
    page = (tmp_path / "out.html").read_text()
    assert "Threads &amp; more" in page
    assert "ResNet-50 training is fastest with 16 threads" in page


def test_the_page_is_called_report_html_and_the_store_corewise_store_by_default(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.rename(tmp_path / "corewise-store")
    monkeypatch.chdir(tmp_path)
    report()
    assert (tmp_path / "report.html").stat().st_size > 100_000


def test_json_is_one_object_and_no_page_is_written(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    output = json.loads(report("--store", store, "--json"))
    assert output["studies"][0]["answers"][0].startswith("ResNet-50 training is fastest")
    assert output["summary"]
    assert not (tmp_path / "report.html").exists()


def test_several_stores_and_one_study_of_them(store: Path, tmp_path: Path) -> None:
    other = write_store(tmp_path / "other", *scaling(study="other"))
    both = json.loads(report("--store", store, "--store", other, "--json"))
    assert [study["title"] for study in both["studies"]] == ["a-study", "other"]
    one = json.loads(report("--store", store, "--store", other, "--study", "other", "--json"))
    assert [study["title"] for study in one["studies"]] == ["other"]


@pytest.mark.parametrize(("fmt", "start"), [("svg", b"<svg"), ("pdf", b"%PDF"), ("png", b"\x89PNG")])
def test_figures_are_files_named_by_their_keys(store: Path, tmp_path: Path, fmt: str, start: bytes) -> None:
    folder = tmp_path / "a" / "figures"
    output = json.loads(report("--store", store, "--figures", folder, "--format", fmt, "--json"))
    keys = {chart["key"] for study in output["studies"] for chart in study["charts"]}
    assert {path.name for path in folder.iterdir()} == {f"{key}.{fmt}" for key in keys}
    assert all(path.read_bytes().startswith(start) for path in folder.iterdir())


def test_published_figures_can_be_left_out(store: Path) -> None:
    assert "published-node-efficiency" in report("--store", store, "--json")
    assert "published-node-efficiency" not in report("--store", store, "--json", "--no-published")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--store", "none"], "the store none does not exist"),
        (["--store", "store", "--format", "gif"], "unknown --format 'gif': known: pdf, png, svg"),
        (["--store", "store", "--study", "x"], "no study 'x'"),
        (["--store", "store", "-o", "missing/report.html"], "does not exist: create it"),
        (["--store", "store", "-o", "store"], "store is a folder: choose a file, for example -o store"),
        (["--store", "store", "--published", "none"], "none does not exist"),
        (["--store", "store", "--figures", "file/x"], "cannot be created"),
    ],
)  # fmt: skip
def test_mistakes_are_reported(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    with pytest.raises(UserError) as error:
        report(*arguments)
    assert message in str(error.value)


def test_a_folder_that_cannot_be_written_to_is_reported(store: Path, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(UserError, match="cannot be written"):
        report("--store", store, "-o", tmp_path / "locked" / "report.html")


def test_a_page_that_exists_is_replaced_in_one_step(store: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text("old")
    with open(page) as reader:
        report("--store", store, "-o", page)
        assert reader.read() == "old"
    assert page.read_text().startswith("<!")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_the_real_store_is_reported(tmp_path: Path) -> None:
    report("--store", REAL_STORE, "-o", tmp_path / "real.html")
    assert (tmp_path / "real.html").stat().st_size < 5_000_000


def test_a_store_without_records_is_reported_with_code_1(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store")
    done = run.invoke(APP, ["report", "--store", str(store), "-o", str(tmp_path / "out.html")])
    assert done.exit_code == 1
    assert "nothing was measured: There are no records yet. Run a study with" in done.stderr
    assert "nothing measured yet" in (tmp_path / "out.html").read_text()
    done = run.invoke(APP, ["report", "--store", str(store), "--json"])
    assert (done.exit_code, json.loads(done.stdout)["studies"]) == (1, [])
