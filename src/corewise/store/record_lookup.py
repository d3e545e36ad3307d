"""Read single records again from known places."""

from io import BufferedReader
from pathlib import Path
from types import TracebackType

from corewise.errors import UserError
from corewise.store.file_parts import RecordPlace
from corewise.store.sealed_lines import extract_sealed_part, unseal
from corewise.study.record import Record, UnreadableRecord

# A store has one file for each process that ever wrote to it, so not all stay open.
_MAX_OPEN = 64


class PlaceReader:
    """Reads records by place and keeps some files open; a context manager that closes them."""

    def __init__(self) -> None:
        self._files: dict[Path, BufferedReader] = {}

    def read_record(self, place: RecordPlace) -> Record:
        """Read the full record at a place."""
        value = unseal(self._read_text(place))
        try:
            if value is not None:
                return Record.from_json(value)
        except UnreadableRecord:
            pass
        raise _explain_change(place)

    def read_json_text(self, place: RecordPlace) -> memoryview:
        """Read the stored JSON of a record, without its seal and closing brace."""
        covered = extract_sealed_part(self._read_text(place))
        if covered is None:
            raise _explain_change(place)
        return covered

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    def __enter__(self) -> "PlaceReader":
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read_text(self, place: RecordPlace) -> bytes:
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


def _explain_change(place: RecordPlace) -> UserError:
    return UserError(
        f"{place.file} was changed at byte {place.offset} while it was read: "
        "record files must only be appended to; run again"
    )
