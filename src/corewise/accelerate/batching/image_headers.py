"""Read the size of an image from its header, without decoding it and without an image library.

Measured side: standard library only, Python 3.9. Supported: JPEG, PNG, GIF, BMP, WebP, TIFF and the PNM formats.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import BinaryIO, Dict, List, Optional, Tuple

# Files with these suffixes are expected to be images.
SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".jpe", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm")
)
# Images in formats that are not read here. They are reported and not ignored.
UNSUPPORTED_SUFFIXES = frozenset((".heic", ".heif", ".avif", ".jxl", ".jp2", ".j2k", ".psd", ".exr", ".tga"))
# Orientations of EXIF that exchange width and height.
_TURNED = frozenset((5, 6, 7, 8))
# Start-of-frame markers of JPEG. C4, C8 and CC are other tables.
_FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_EXIF_START = b"Exif\0\0"
_WIDTH_TAG, _HEIGHT_TAG, _BITS_TAG, _ORIENTATION_TAG, _SAMPLES_TAG = 256, 257, 258, 274, 277
# TIFF files hold at most this many tags in practice; more mean damage.
_MAX_TAGS = 4096
_PNG_CHANNELS = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}
# End markers stand in the last bytes of nearly all files.
_TAIL_BYTES = 4096
_BLOCK_BYTES = 1 << 20


class HeaderError(Exception):
    """The file is no image that can be read; the text says why."""


@dataclass(frozen=True)
class ImageHeader:
    """What a header says. Width and height are as stored, before the orientation is applied."""

    format: str
    width: int
    height: int
    channels: int
    bits: int
    orientation: int = 1

    @property
    def is_turned(self) -> bool:
        """Whether the orientation exchanges width and height."""
        return self.orientation in _TURNED


def read_header(file: BinaryIO, num_bytes: int) -> ImageHeader:
    """Read the header of an open file.

    Args:
        file: the file, opened for reading bytes, at its start.
        num_bytes: the size of the file.

    Raises:
        HeaderError: the file is empty, truncated, damaged or in another format.
    """
    if num_bytes == 0:
        raise HeaderError("the file is empty")
    start = file.read(16)
    try:
        header = _parse(file, start, num_bytes)
    except (struct.error, IndexError, ValueError) as problem:
        raise HeaderError("truncated: the file ends inside its header") from problem
    if header.width < 1 or header.height < 1:
        raise HeaderError(f"damaged: the header says {header.width}×{header.height} pixels")
    return header


def _parse(file: BinaryIO, start: bytes, num_bytes: int) -> ImageHeader:
    if start.startswith(b"\xff\xd8"):
        return _parse_jpeg(file, num_bytes)
    if start.startswith(b"\x89PNG\r\n\x1a\n"):
        return _parse_png(file, num_bytes)
    if start.startswith((b"GIF87a", b"GIF89a")):
        width, height = struct.unpack("<HH", start[6:10])
        return ImageHeader("gif", width, height, 3, 8)
    if start.startswith(b"BM"):
        return _parse_bmp(file)
    if start.startswith(b"RIFF") and start[8:12] == b"WEBP":
        return _parse_webp(file, num_bytes)
    if start.startswith((b"II*\0", b"MM\0*")):
        file.seek(0)
        return _parse_tiff(file)
    if start[:1] == b"P" and start[1:2] in b"123456" and start[2:3].isspace():
        return _parse_pnm(file)
    raise HeaderError("not an image: unknown first bytes")


def _parse_jpeg(file: BinaryIO, num_bytes: int) -> ImageHeader:
    frame: Optional[Tuple[int, int, int, int]] = None
    orientation = 1
    file.seek(2)
    while True:
        marker = _read_marker(file)
        if marker == 0xD9:
            raise HeaderError("damaged: no image data before the end marker")
        (length,) = struct.unpack(">H", file.read(2))
        if marker in _FRAME_MARKERS:
            bits, height, width, channels = struct.unpack(">BHHB", file.read(6))
            frame = (width, height, channels, bits)
            file.seek(length - 8, 1)
        elif marker == 0xDA:
            break
        elif marker == 0xE1:
            payload = file.read(length - 2)
            if payload.startswith(_EXIF_START):
                orientation = _parse_orientation(payload[len(_EXIF_START) :])
        else:
            file.seek(length - 2, 1)
    if frame is None:
        raise HeaderError("damaged: no size before the image data")
    width, height, channels, bits = frame
    if height == 0:
        raise HeaderError("the height is stated after the image data (DNL), which is not supported")
    _require_end(file, num_bytes, b"\xff\xd9")
    return ImageHeader("jpeg", width, height, channels, bits, orientation)


def _read_marker(file: BinaryIO) -> int:
    """Return the next marker that has a length, or the end marker."""
    while True:
        if file.read(1)[0] != 0xFF:
            raise HeaderError("damaged: no marker where one is expected")
        marker = file.read(1)[0]
        while marker == 0xFF:
            marker = file.read(1)[0]
        # Restart markers have no length.
        if marker != 0x01 and not 0xD0 <= marker <= 0xD8:
            return marker


def _require_end(file: BinaryIO, num_bytes: int, end: bytes) -> None:
    """Raise HeaderError unless the end marker follows the current position; other data may follow the marker."""
    place = file.tell()
    file.seek(max(place, num_bytes - _TAIL_BYTES))
    if end in file.read():
        return
    # Cameras append films and other images. Compressed data never holds the marker.
    file.seek(place)
    before = b""
    while True:
        block = file.read(_BLOCK_BYTES)
        if end in before + block:
            return
        if not block:
            raise HeaderError("truncated: the end marker is missing")
        before = block[-len(end) :]


def _parse_orientation(exif: bytes) -> int:
    """Return the orientation of EXIF data; 1 (upright) if it is absent or damaged."""
    try:
        order = {b"II": "<", b"MM": ">"}[exif[:2]]
        (offset,) = struct.unpack_from(order + "I", exif, 4)
        (num_tags,) = struct.unpack_from(order + "H", exif, offset)
        for i in range(min(num_tags, _MAX_TAGS)):
            tag, _, _, value = struct.unpack_from(order + "HHIH", exif, offset + 2 + 12 * i)
            if tag == _ORIENTATION_TAG:
                return int(value) if 1 <= value <= 8 else 1
    except (KeyError, struct.error):
        pass
    return 1


def _parse_png(file: BinaryIO, num_bytes: int) -> ImageHeader:
    file.seek(8)
    orientation, fields = 1, None
    while True:
        length, name = struct.unpack(">I4s", file.read(8))
        if fields is None:
            if name != b"IHDR":
                raise HeaderError("damaged: the first chunk is not IHDR")
            fields = struct.unpack(">IIBB", file.read(10))
            file.seek(length - 10 + 4, 1)
        elif name == b"eXIf":
            orientation = _parse_orientation(file.read(length))
            file.seek(4, 1)
        elif name == b"IDAT":
            break
        else:
            file.seek(length + 4, 1)
    width, height, bits, colour = fields
    _require_end(file, num_bytes, b"IEND")
    if orientation == 1:
        # Some programs write EXIF behind the pixels.
        file.seek(max(0, num_bytes - _TAIL_BYTES))
        orientation = _parse_orientation(file.read().partition(b"eXIf")[2])
    return ImageHeader("png", width, height, _PNG_CHANNELS.get(colour, 3), bits, orientation)


def _parse_bmp(file: BinaryIO) -> ImageHeader:
    file.seek(14)
    (header_bytes,) = struct.unpack("<I", file.read(4))
    if header_bytes == 12:
        width, height, _, bits = struct.unpack("<HHHH", file.read(8))
    else:
        # A negative height means that rows run from top to bottom.
        width, height, _, bits = struct.unpack("<iiHH", file.read(12))
    return ImageHeader("bmp", width, abs(height), 4 if bits == 32 else 3, 8)


def _parse_webp(file: BinaryIO, num_bytes: int) -> ImageHeader:
    file.seek(4)
    (riff_bytes,) = struct.unpack("<I", file.read(4))
    if riff_bytes + 8 > num_bytes:
        raise HeaderError(f"truncated: {num_bytes:,} of {riff_bytes + 8:,} bytes")
    file.seek(12)
    name, length = struct.unpack("<4sI", file.read(8))
    data = file.read(10)
    if name == b"VP8 ":
        if data[3:6] != b"\x9d\x01\x2a":
            raise HeaderError("damaged: no start code of VP8")
        width, height = struct.unpack("<HH", data[6:10])
        return ImageHeader("webp", width & 0x3FFF, height & 0x3FFF, 3, 8)
    if name == b"VP8L":
        (packed,) = struct.unpack("<I", data[1:5])
        return ImageHeader("webp", (packed & 0x3FFF) + 1, (packed >> 14 & 0x3FFF) + 1, 4 if packed >> 28 & 1 else 3, 8)
    if name != b"VP8X":
        raise HeaderError("damaged: no image in the WebP file")
    width, height = (1 + int.from_bytes(data[k : k + 3], "little") for k in (4, 7))
    has_alpha, has_exif = bool(data[0] & 0x10), bool(data[0] & 0x08)
    orientation = _find_webp_orientation(file, 20 + length + length % 2, num_bytes) if has_exif else 1
    return ImageHeader("webp", width, height, 4 if has_alpha else 3, 8, orientation)


def _find_webp_orientation(file: BinaryIO, place: int, num_bytes: int) -> int:
    while place + 8 <= num_bytes:
        file.seek(place)
        name, length = struct.unpack("<4sI", file.read(8))
        if name == b"EXIF":
            payload = file.read(length)
            return _parse_orientation(payload[len(_EXIF_START) :] if payload.startswith(_EXIF_START) else payload)
        place += 8 + length + length % 2
    return 1


def _parse_tiff(file: BinaryIO) -> ImageHeader:
    order = "<" if file.read(4)[:2] == b"II" else ">"
    (offset,) = struct.unpack(order + "I", file.read(4))
    file.seek(offset)
    (num_tags,) = struct.unpack(order + "H", file.read(2))
    values: Dict[int, int] = {}
    for _ in range(min(num_tags, _MAX_TAGS)):
        tag, number_format, count, raw = struct.unpack(order + "HHI4s", file.read(12))
        # Format 3 is a 16-bit number, 4 a 32-bit number. More than two 16-bit numbers stand at an offset.
        if number_format == 3:
            (values[tag],) = struct.unpack(order + "H", raw[:2])
        elif number_format == 4:
            (values[tag],) = struct.unpack(order + "I", raw)
        if tag == _BITS_TAG and count > 2:
            values[tag] = 8
    if _WIDTH_TAG not in values or _HEIGHT_TAG not in values:
        raise HeaderError("damaged: the TIFF file does not state its size")
    orientation = values.get(_ORIENTATION_TAG, 1)
    return ImageHeader(
        "tiff",
        values[_WIDTH_TAG],
        values[_HEIGHT_TAG],
        values.get(_SAMPLES_TAG, 1),
        values.get(_BITS_TAG, 1),
        orientation if 1 <= orientation <= 8 else 1,
    )


def _parse_pnm(file: BinaryIO) -> ImageHeader:
    file.seek(0)
    words: List[bytes] = []
    while len(words) < 4:
        line = file.readline(_TAIL_BYTES)
        if not line:
            break
        words += line.partition(b"#")[0].split()
    has_maximum = words[0] not in (b"P1", b"P4")
    bits = 1 if not has_maximum else 16 if int(words[3]) > 255 else 8
    return ImageHeader("pnm", int(words[1]), int(words[2]), 3 if words[0] in (b"P3", b"P6") else 1, bits)
