"""All logs of an older launch are moved to a subfolder, and none is lost."""

from pathlib import Path

from corewise.launch.supervision.rank_logs import build_log_path, move_old_logs


def write_logs(folder: Path, num_ranks: int, text: str) -> None:
    for rank in range(num_ranks):
        build_log_path(folder, rank).write_text(text)


def test_a_new_folder_has_no_logs_to_move(tmp_path: Path) -> None:
    assert move_old_logs(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_all_logs_of_a_larger_launch_are_moved(tmp_path: Path) -> None:
    write_logs(tmp_path, 3, "first")
    assert move_old_logs(tmp_path) == tmp_path / "older-1"
    assert [path.name for path in tmp_path.iterdir()] == ["older-1"]
    assert build_log_path(tmp_path / "older-1", 2).read_text() == "first"


def test_the_logs_of_every_older_launch_are_kept(tmp_path: Path) -> None:
    for text in ("first", "second", "third"):
        move_old_logs(tmp_path)
        write_logs(tmp_path, 1, text)
    texts = [build_log_path(tmp_path / name, 0).read_text() for name in ("older-1", "older-2", ".")]
    assert texts == ["first", "second", "third"]


def test_other_files_are_not_moved(tmp_path: Path) -> None:
    (tmp_path / "rank-0.log").mkdir()
    (tmp_path / "rank-a.log").touch()
    (tmp_path / "notes.txt").touch()
    assert move_old_logs(tmp_path) is None
