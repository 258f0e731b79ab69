"""From bytes in any cut to whole lines, in linear time and bounded memory."""

from typing import Final, NamedTuple

_KEPT: Final = 4096


class OversizedLine(NamedTuple):
    """A line that was too long to keep: its length, its beginning and its end."""

    length: int
    head: bytes
    tail: bytes


class LineAssembler:
    """Collects bytes until a newline. A line above `most` is counted, not kept."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._parts: list[bytes] = []
        self._length = 0
        self._head = b""
        self._tail = b""

    @property
    def pending_bytes(self) -> int:
        """How long the unfinished line is by now."""
        return self._length

    def feed(self, data: bytes) -> list[bytes | OversizedLine]:
        """The lines these bytes complete, without their ends."""
        *whole, rest = data.split(b"\n")
        lines: list[bytes | OversizedLine] = []
        for piece in whole:
            self._take(piece)
            lines.append(self._finish())
        self._take(rest)
        return lines

    def _take(self, piece: bytes) -> None:
        self._length += len(piece)
        if self._length <= self._most:
            self._parts.append(piece)
            return
        if self._parts:
            self._head = b"".join(self._parts)[:_KEPT]
            self._parts = []
        self._head = self._head or piece[:_KEPT]
        self._tail = (self._tail + piece[-_KEPT:])[-_KEPT:]

    def _finish(self) -> bytes | OversizedLine:
        if self._length <= self._most:
            line: bytes | OversizedLine = b"".join(self._parts).removesuffix(b"\r")
        else:
            line = OversizedLine(self._length, self._head, self._tail)
        self._parts, self._length, self._head, self._tail = [], 0, b"", b""
        return line
