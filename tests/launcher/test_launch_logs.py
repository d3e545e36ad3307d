"""The logs of an older launch are moved aside, all of them, and nothing is lost."""

from pathlib import Path

from corewise.launcher.logs import log_file, set_aside_older


def write_logs(folder: Path, num_ranks: int, text: str) -> None:
    for rank in range(num_ranks):
        log_file(folder, rank).write_text(text)


def test_a_new_folder_has_nothing_to_set_aside(tmp_path: Path) -> None:
    assert set_aside_older(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_logs_of_more_ranks_do_not_stay_beside_those_of_fewer(tmp_path: Path) -> None:
    write_logs(tmp_path, 3, "first")
    assert set_aside_older(tmp_path) == tmp_path / "older-1"
    assert [path.name for path in tmp_path.iterdir()] == ["older-1"]
    assert log_file(tmp_path / "older-1", 2).read_text() == "first"


def test_every_older_launch_is_kept(tmp_path: Path) -> None:
    for text in ("first", "second", "third"):
        set_aside_older(tmp_path)
        write_logs(tmp_path, 1, text)
    kept = [log_file(tmp_path / name, 0).read_text() for name in ("older-1", "older-2", ".")]
    assert kept == ["first", "second", "third"]


def test_files_that_are_no_logs_stay_where_they_are(tmp_path: Path) -> None:
    (tmp_path / "rank-0.log").mkdir()
    (tmp_path / "rank-a.log").touch()
    (tmp_path / "notes.txt").touch()
    assert set_aside_older(tmp_path) is None
