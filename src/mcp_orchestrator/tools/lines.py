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
        self._kept = bytearray()
        self._length = 0
        self._head = b""
        self._tail = b""

    @property
    def pending_bytes(self) -> int:
        """How long the unfinished line is by now."""
        return self._length

    def feed(self, data: bytes) -> list[bytearray | OversizedLine]:
        """The lines these bytes complete, without their ends."""
        *whole, rest = data.split(b"\n")
        lines: list[bytearray | OversizedLine] = []
        for piece in whole:
            self._take(piece)
            lines.append(self._finish())
        self._take(rest)
        return lines

    def _take(self, piece: bytes) -> None:
        self._length += len(piece)
        if self._length <= self._most:
            self._kept += piece
            return
        if self._kept:
            self._head = bytes(self._kept[:_KEPT])
            self._kept = bytearray()
        self._head = self._head or piece[:_KEPT]
        self._tail = (self._tail + piece[-_KEPT:])[-_KEPT:]

    def _finish(self) -> bytearray | OversizedLine:
        if self._length > self._most:
            line: bytearray | OversizedLine = OversizedLine(self._length, self._head, self._tail)
        else:
            line = self._kept.removesuffix(b"\r") if self._kept.endswith(b"\r") else self._kept
        self._kept, self._length, self._head, self._tail = bytearray(), 0, b"", b""
        return line
