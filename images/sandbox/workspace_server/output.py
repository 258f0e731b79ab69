"""What a running command says: shown live in pieces, kept in part for the answer, and whole in a file."""

from __future__ import annotations

import os
from codecs import utf_8_decode
from time import gmtime, monotonic, strftime

from calls import ToolError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from calls import Call
    from loop import Loop, Timer
    from paths import Workspace

_HALF_BYTES = 16 * 1024  # of each stream, kept from its beginning and from its end
_FILE_BYTES = 4 * 1024 * 1024
_FILES_KEPT = 8
_FOLDER = ".output"

_LIVE_SECONDS = 0.1  # with two streams: at most 20 notifications a second
_LIVE_PIECE_BYTES = 64 * 1024
_LIVE_TOTAL_BYTES = 1024 * 1024  # of one command; all of that is shown, and nothing after it
_STREAM_KEY = "io.mcp-orchestrator/stream"


class Capture:
    """One stream of a command: head and tail in memory, and all of it, bounded, in a file once it is long."""

    def __init__(self, name: str, workspace: Workspace) -> None:
        self.name = name
        self.total = 0
        self._workspace = workspace
        self._head = bytearray()
        self._tail = bytearray()
        self._file = -1
        self._file_path = ""
        self._in_file = 0
        self._trouble = ""

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = _HALF_BYTES - len(self._head)
        self._head += data[:room]
        self._tail += data[room:] if room > 0 else data
        if self.total > 2 * _HALF_BYTES:
            self._save(data)
        del self._tail[:-_HALF_BYTES]

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def text(self) -> str:
        """What goes back to the model."""
        left_out = self.total - len(self._head) - len(self._tail)
        if not left_out:
            return (self._head + self._tail).decode("utf-8", "replace")
        middle = f"\n[... {left_out} bytes left out ...]\n"
        return self._head.decode("utf-8", "replace") + middle + self._tail.decode("utf-8", "replace")

    def note(self) -> str:
        """A sentence on where the rest is; empty when nothing was left out."""
        if self.total <= 2 * _HALF_BYTES:
            return ""
        if self._trouble and not self._in_file:
            return f"{self.name} has {self.total} bytes and could not be saved: {self._trouble}."
        how_much = "All" if self._in_file == self.total else f"The first {self._in_file}"
        return f"{self.name} has {self.total} bytes. {how_much} of it is in {self._file_path}."

    def _save(self, data: bytes) -> None:
        if self._trouble:
            return
        try:
            if self._file < 0:
                self._file, self._file_path = _new_file(self._workspace, self.name)
                data = bytes(self._head + self._tail)
            piece = data[: _FILE_BYTES - self._in_file]
            if piece:
                self._in_file += os.write(self._file, piece)
        except OSError as error:
            self._trouble = str(error.strerror)
        except ToolError as error:
            self._trouble = str(error)


class Live:
    """Sends what a command says while it runs, often enough to watch and seldom enough to be cheap."""

    def __init__(self, call: Call, loop: Loop) -> None:
        self._call = call
        self._loop = loop
        self._waiting = {"stdout": bytearray(), "stderr": bytearray()}
        self._timer: Timer | None = None
        self._next = 0.0
        self._told = 0
        self._room = _LIVE_TOTAL_BYTES

    def add(self, stream: str, data: bytes) -> None:
        """Show this soon, as long as the command has not said too much."""
        if not self._call.wants_progress or not self._room:
            return
        shown = data[: self._room]
        self._room -= len(shown)
        self._waiting[stream] += shown
        if not self._room:
            self._waiting[stream] += b"\n[... the rest is not shown live ...]\n"
        if self._timer is None:
            self._timer = self._loop.after(max(0.0, self._next - monotonic()), self._tell_all)

    def close(self) -> None:
        """Show the rest, even what ends in the middle of a character."""
        self._loop.cancel(self._timer)
        for stream in self._waiting:
            while self._waiting[stream] and self._tell(stream, is_last=True):
                pass

    def _tell_all(self) -> None:
        self._timer = None
        self._next = monotonic() + _LIVE_SECONDS
        for stream in self._waiting:
            self._tell(stream, is_last=False)
        if any(self._waiting.values()):
            self._timer = self._loop.after(_LIVE_SECONDS, self._tell_all)

    def _tell(self, stream: str, *, is_last: bool) -> bool:
        """Send a piece of what waits of one stream; returns False when nothing could be sent."""
        waiting = self._waiting[stream]
        piece = bytes(waiting[:_LIVE_PIECE_BYTES])
        message, used = utf_8_decode(piece, "replace", is_last and len(piece) == len(waiting))
        if not used:
            return False
        meta = {_STREAM_KEY: stream}
        if not self._call.progress(self._told + used, message, meta, is_last=is_last):
            return False
        del waiting[:used]
        self._told += used
        return True


def _new_file(workspace: Workspace, stream: str) -> tuple[int, str]:
    folder = workspace.open_directory(_FOLDER, create=True)
    try:
        _remove_oldest(folder)
        time = strftime("%Y%m%d-%H%M%S", gmtime())
        for number in range(1000):
            name = f"{time}-{number:03}.{stream}.txt"
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                return os.open(name, flags, 0o644, dir_fd=folder), f"{workspace.root}/{_FOLDER}/{name}"
            except FileExistsError:
                continue
        raise FileExistsError(17, f"no free name in {_FOLDER}")
    finally:
        os.close(folder)


def _remove_oldest(folder: int) -> None:
    """Keep room: the outputs of long ago are not worth a full workspace."""
    ours = sorted(name for name in os.listdir(folder) if name.endswith((".stdout.txt", ".stderr.txt")))
    for name in ours[: 1 - _FILES_KEPT]:
        os.unlink(name, dir_fd=folder)
