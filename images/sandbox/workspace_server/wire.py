"""Lines in, lines out: the byte streams under the protocol."""

from __future__ import annotations

import os
from select import POLLOUT, poll

from jsontext import dumps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from loop import Loop

LINE_BYTES = 16 * 1024 * 1024
_HEAD_BYTES = 4096  # what is kept of a line that is too long: enough to see whom to answer
_READ_BYTES = 64 * 1024
_FULL_SECONDS = 0.05  # between two looks at whether the client reads again
_BACKLOG_BYTES = 8 * 1024 * 1024
_LAST_WORDS_SECONDS = 2


class LineReader:
    """Cuts a byte stream into lines, in time linear in their length and in memory of one line."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._too_long = False

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bool]]:
        """Yield each line that these bytes complete, and whether it is whole.

        A line of more than `LINE_BYTES` is not whole: only its head is given, the rest was skipped.
        """
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            self._keep(data[start:end])
            yield self._take()
            start = end + 1
        self._keep(data[start:])

    def _keep(self, part: bytes) -> None:
        if self._too_long:
            return
        self._line += part
        if len(self._line) > LINE_BYTES:
            self._line = self._line[:_HEAD_BYTES]
            self._too_long = True

    def _take(self) -> tuple[bytes, bool]:
        line, whole = bytes(self._line), not self._too_long
        self._line = bytearray()  # a new one: clearing would keep the memory of the longest line
        self._too_long = False
        return line, whole


class Inbox:
    """Hands over the lines of the client one by one, as long as the client reads the answers."""

    def __init__(self, fd: int, loop: Loop, outbox: Outbox, receive: Callable[[bytes, bool], None]) -> None:
        self._fd = fd
        self._loop = loop
        self._outbox = outbox
        self._receive = receive
        self._reader = LineReader()
        self._lines: Iterator[tuple[bytes, bool]] = iter(())

    def open(self) -> None:
        """Begin. The end of the stream stops the loop."""
        self._loop.on_readable(self._fd, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._fd, _READ_BYTES)
        except BlockingIOError:
            return  # one file for both directions, and the answers made it non-blocking
        except OSError:
            data = b""  # the connection broke: the client is gone
        if not data:
            self._loop.stop()
        self._lines = self._reader.feed(data)
        self._hand_over()

    def _hand_over(self) -> None:
        for line, is_whole in self._lines:
            self._receive(line, is_whole)
            if self._outbox.is_full:
                self._loop.on_hangup(self._fd, self._loop.stop)
                self._loop.after(_FULL_SECONDS, self._go_on)
                return
        self.open()

    def _go_on(self) -> None:
        if self._outbox.is_full:
            self._loop.after(_FULL_SECONDS, self._go_on)
        else:
            self._hand_over()


class Outbox:
    """Writes messages without blocking: a client that reads slowly cannot hold up a timeout or a kill."""

    def __init__(self, fd: int, loop: Loop) -> None:
        self._fd = fd
        self._loop = loop
        self._waiting = bytearray()
        os.set_blocking(fd, False)

    @property
    def is_behind(self) -> bool:
        """The client has not read what was written: leave out what can be left out."""
        return bool(self._waiting)

    @property
    def is_full(self) -> bool:
        """So much waits that no further request should be read."""
        return len(self._waiting) > _BACKLOG_BYTES

    def send(self, message: dict[str, Any]) -> None:
        was_waiting = bool(self._waiting)
        self._waiting += dumps(message) + b"\n"
        if not was_waiting:
            self._write()
            if self._waiting:
                self._loop.on_writable(self._fd, self._write_more)

    def flush_last(self) -> None:
        """Write what is left before the end of the process, for a client that still reads."""
        writable = poll()
        writable.register(self._fd, POLLOUT)
        while self._waiting and writable.poll(_LAST_WORDS_SECONDS * 1000):
            before = len(self._waiting)
            self._write()
            if len(self._waiting) == before:
                return

    def _write_more(self) -> None:
        self._write()
        if not self._waiting:
            self._loop.forget(self._fd)

    def _write(self) -> None:
        try:
            del self._waiting[: os.write(self._fd, self._waiting)]
        except BlockingIOError:
            pass
        except OSError:
            # Nobody will ever read again: there is no one left to serve.
            self._waiting.clear()
            self._loop.stop()
