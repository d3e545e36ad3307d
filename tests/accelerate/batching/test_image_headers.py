"""Headers say what Pillow says, for every format, and damage is named."""

import io
import struct
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("PIL")
from PIL import Image
from tests.accelerate.batching.sample_images import write_image

from corewise.accelerate.batching.image_headers import HeaderError, ImageHeader, read_header


def read_bytes(data: bytes) -> ImageHeader:
    return read_header(io.BytesIO(data), len(data))


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        *(("a.jpg", mode) for mode in ("RGB", "L", "CMYK")),
        *(("a.png", mode) for mode in ("RGB", "RGBA", "L", "LA", "P", "1", "I;16")),
        *(("a.webp", mode) for mode in ("RGB", "RGBA")),
        *(("a.tif", mode) for mode in ("RGB", "L", "I;16", "1")),
        *(("a.bmp", mode) for mode in ("RGB", "L", "1")),
        *(("a.ppm", mode) for mode in ("RGB", "L", "1")),
        ("a.gif", "P"),
    ],
)
def test_the_size_is_that_of_the_decoded_image(tmp_path: Path, name: str, mode: str) -> None:
    path = write_image(tmp_path / name, 37, 61, mode)
    header = read_bytes(path.read_bytes())
    with Image.open(path) as image:
        assert (header.width, header.height) == image.size == (61, 37)


@pytest.mark.parametrize(
    "options", [{"progressive": True}, {"quality": 100, "subsampling": 0}, {"comment": "x" * 60000}]
)
def test_unusual_jpeg_files_are_read(tmp_path: Path, options: dict[str, object]) -> None:
    header = read_bytes(write_image(tmp_path / "a.jpg", 37, 61, **options).read_bytes())
    assert (header.format, header.width, header.height, header.channels, header.bits) == ("jpeg", 61, 37, 3, 8)


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp", "a.tif"])
def test_the_orientation_of_exif_is_found(tmp_path: Path, name: str) -> None:
    header = read_bytes(write_image(tmp_path / name, turned=True).read_bytes())
    assert header.orientation == 6
    assert header.is_turned


def test_exif_behind_the_pixels_of_a_png_counts(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = exif.tobytes().removeprefix(b"Exif\0\0")
    chunk = struct.pack(">I4s", len(data), b"eXIf") + data + struct.pack(">I", zlib.crc32(b"eXIf" + data))
    png = write_image(tmp_path / "a.png").read_bytes()
    assert read_bytes(png[:-12] + chunk + png[-12:]).is_turned


def test_a_lossless_webp_with_alpha_has_four_channels(tmp_path: Path) -> None:
    header = read_bytes(write_image(tmp_path / "a.webp", 37, 61, "RGBA", lossless=True).read_bytes())
    assert (header.width, header.height, header.channels) == (61, 37, 4)


def test_sixteen_bits_are_reported(tmp_path: Path) -> None:
    for name in ("a.png", "a.tif"):
        assert read_bytes(write_image(tmp_path / name, mode="I;16").read_bytes()).bits == 16


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp"])
@pytest.mark.parametrize("share", [0.02, 0.3, 0.7, 0.98])
def test_truncated_files_are_refused(tmp_path: Path, name: str, share: float) -> None:
    data = write_image(tmp_path / name, 200, 300).read_bytes()
    with pytest.raises(HeaderError):
        read_bytes(data[: int(share * len(data))])


def test_a_jpeg_file_with_a_film_behind_it_is_complete(tmp_path: Path) -> None:
    data = write_image(tmp_path / "a.jpg").read_bytes() + bytes(3_000_000)
    assert read_bytes(data).width == 50


def test_a_thumbnail_does_not_hide_that_the_image_is_truncated(tmp_path: Path) -> None:
    thumbnail = write_image(tmp_path / "small.jpg").read_bytes()
    payload = b"Exif\0\0" + thumbnail
    data = write_image(tmp_path / "a.jpg", 200, 300).read_bytes()
    joined = data[:2] + b"\xff\xe1" + struct.pack(">H", len(payload) + 2) + payload + data[2:-20]
    with pytest.raises(HeaderError, match="end marker is missing"):
        read_bytes(joined)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"hello, world of text", "not an image"),
        (b"GIF89a" + struct.pack("<HH", 0, 5) + bytes(6), "0×5 pixels"),
        (b"\x89PNG\r\n\x1a\n" + struct.pack(">I4s", 13, b"IDAT"), "not IHDR"),
        (b"P6\n# only a comment", "truncated"),
    ],
)
def test_damage_is_named(data: bytes, reason: str) -> None:
    with pytest.raises(HeaderError, match=reason):
        read_bytes(data)


@given(start=st.sampled_from([b"\xff\xd8", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"BM", b"RIFF1234WEBP", b"II*\0", b"P6 "]),
       rest=st.binary(max_size=200))  # fmt: skip
def test_arbitrary_bytes_give_a_size_or_a_reason(start: bytes, rest: bytes) -> None:
    try:
        header = read_bytes(start + rest)
    except HeaderError:
        return
    assert header.width > 0
    assert header.height > 0
