"""Image files in every supported format, written with Pillow."""

from pathlib import Path

from PIL import Image

# EXIF: turned by 90 degrees.
ORIENTATION_TAG, TURNED = 0x0112, 6


def write_image(
    path: Path, height: int = 30, width: int = 50, mode: str = "RGB", turned: bool = False, **options: object
) -> Path:
    image = Image.new(mode, (width, height), None)
    if turned:
        exif = Image.Exif()
        exif[ORIENTATION_TAG] = TURNED
        options["exif"] = exif.tobytes()
    image.save(path, **options)  # type: ignore[arg-type]
    return path
