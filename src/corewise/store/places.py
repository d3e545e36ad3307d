"""Reads single records again at the places where they were found."""

from io import BufferedReader
from pathlib import Path
from types import TracebackType

from corewise.spec.errors import UserError
from corewise.spec.record import Record, UnreadableRecord
from corewise.store.lines import sealed_part, unseal
from corewise.store.parts import Place

_MAX_OPEN = 64  # a store has a file for each process that ever wrote to it


class PlaceReader:
    """Keeps some files open while records are read again; a context manager that lets go of them."""

    def __init__(self) -> None:
        self._files: dict[Path, BufferedReader] = {}

    def record(self, place: Place) -> Record:
        """The whole record at a place."""
        value = unseal(self._text(place))
        try:
            if value is not None:
                return Record.from_json(value)
        except UnreadableRecord:
            pass
        raise _changed(place)

    def json_text(self, place: Place) -> memoryview:
        """The JSON of the record at a place as it stands there, without its seal and closing brace."""
        covered = sealed_part(self._text(place))
        if covered is None:
            raise _changed(place)
        return covered

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    def __enter__(self) -> "PlaceReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _text(self, place: Place) -> bytes:
        try:
            file = self._files.get(place.file)
            if file is None:
                if len(self._files) >= _MAX_OPEN:
                    self.close()
                file = self._files[place.file] = place.file.open("rb")
            file.seek(place.offset)
            return file.read(place.num_bytes)
        except OSError as error:
            raise UserError(f"{place.file} cannot be read: {error.strerror or error}") from error


def _changed(place: Place) -> UserError:
    return UserError(
        f"{place.file} was changed at byte {place.offset} while it was read: "
        "record files are only ever appended to; run again"
    )
