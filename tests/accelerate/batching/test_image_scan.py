"""Folders of images: every image is found once, everything else is reported or counted."""

import os
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("PIL")

from tests.accelerate.batching.sample_images import write_image

from corewise.accelerate.batching.errors import BatchingError
from corewise.accelerate.batching.image_scan import read_image_sizes


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "images with spaces"
    (folder / "größe").mkdir(parents=True)
    write_image(folder / "a b.jpg", 30, 50)
    write_image(folder / "größe" / "日本.png", 40, 20, "L")
    write_image(folder / "turned.JPG", 30, 50, turned=True)
    (folder / "notes.txt").write_text("no image")
    return folder


def reasons(folder: Path) -> dict[str, str]:
    return {os.path.basename(each.path): each.reason for each in read_image_sizes(folder).problems}


def test_sizes_are_those_of_upright_images_in_the_order_of_paths(folder: Path) -> None:
    found = read_image_sizes(folder)
    assert [os.path.basename(path) for path in found.paths] == ["a b.jpg", "日本.png", "turned.JPG"]
    assert found.sizes.tolist() == [[30, 50], [40, 20], [50, 30]]
    assert found.channels.tolist() == [3, 1, 3]
    assert (found.num_other_files, found.problems) == (1, ())


def test_images_stay_on_their_side_if_asked(folder: Path) -> None:
    assert read_image_sizes(folder, apply_orientation=False).sizes.tolist()[2] == [30, 50]


def test_the_second_scan_takes_sizes_from_the_cache_until_a_file_changes(folder: Path) -> None:
    first = read_image_sizes(folder)
    second = read_image_sizes(folder)
    assert (first.num_cached, second.num_cached) == (0, 3)
    assert np.array_equal(first.sizes, second.sizes)
    write_image(folder / "a b.jpg", 31, 51)
    third = read_image_sizes(folder)
    assert third.num_cached == 2
    assert third.sizes.tolist()[0] == [31, 51]


def test_a_damaged_cache_is_replaced(folder: Path, cache: Path) -> None:
    read_image_sizes(folder)
    [file] = cache.rglob("*.npz")
    for damage in (b"", b"no archive", file.read_bytes()[:-30]):
        file.write_bytes(damage)
        assert read_image_sizes(folder).num_cached == 0
    assert read_image_sizes(folder).num_cached == 3


def test_a_cache_that_others_can_change_is_not_used(folder: Path, cache: Path) -> None:
    read_image_sizes(folder)
    [file] = cache.rglob("*.npz")
    file.chmod(0o666)
    assert read_image_sizes(folder).num_cached == 0


def test_files_that_are_no_images_are_listed_with_the_reason(folder: Path) -> None:
    data = (folder / "a b.jpg").read_bytes()
    (folder / "cut.jpg").write_bytes(data[: len(data) // 2])
    (folder / "empty.png").touch()
    (folder / "text.jpg").write_text("this is text and no image")
    (folder / "phone.heic").write_bytes(b"ftypheic")
    (folder / "nowhere.jpg").symlink_to(folder / "absent.jpg")
    os.mkfifo(folder / "pipe.jpg")
    found = reasons(folder)
    assert sorted(found) == ["cut.jpg", "empty.png", "nowhere.jpg", "phone.heic", "pipe.jpg", "text.jpg"]
    assert "truncated" in found["cut.jpg"]
    assert "empty" in found["empty.png"]
    assert "not an image" in found["text.jpg"]
    assert ".heic" in found["phone.heic"]
    assert "points nowhere" in found["nowhere.jpg"]


def test_an_image_above_the_limit_is_left_out_and_the_limit_is_named(folder: Path) -> None:
    found = read_image_sizes(folder, max_image_pixels=1000)
    assert len(found.paths) == 1
    assert {os.path.basename(each.path) for each in found.problems} == {"a b.jpg", "turned.JPG"}
    assert "1,000" in found.problems[0].reason
    assert "max_image_pixels" in found.problems[0].reason


def test_links_are_followed_and_circles_end(folder: Path) -> None:
    (folder / "circle").symlink_to(folder)
    (folder / "link.jpg").symlink_to(folder / "a b.jpg")
    assert len(read_image_sizes(folder).paths) == 4


def test_a_file_that_vanishes_during_the_scan_is_a_problem_and_no_failure(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def list_then_delete(entries: object) -> object:
        listed = sorted(entries, key=lambda file: file.path)  # type: ignore[call-overload]
        (folder / "a b.jpg").unlink()
        return listed

    import corewise.accelerate.batching.image_scan as module

    list_files = module._list_files
    monkeypatch.setattr(
        module, "_list_files", lambda root, problems: (list_then_delete((f := list_files(root, problems))[0]), f[1])
    )
    found = read_image_sizes(folder)
    assert [os.path.basename(each.path) for each in found.problems] == ["a b.jpg"]
    assert "vanished" in found.problems[0].reason


def test_an_empty_folder_has_no_images(tmp_path: Path) -> None:
    found = read_image_sizes(tmp_path)
    assert found.paths == ()
    assert found.sizes.shape == (0, 2)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(BatchingError, match="absent does not exist"):
        read_image_sizes(tmp_path / "absent")


def test_progress_counts_all_files(folder: Path) -> None:
    counts: list[tuple[int, int]] = []
    read_image_sizes(folder, report=lambda done, total: counts.append((done, total)))
    assert counts[-1] == (3, 3)
