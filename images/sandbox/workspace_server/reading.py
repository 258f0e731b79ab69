"""The tool that reads a file, a bounded piece at a time."""

from __future__ import annotations

import os
from binascii import b2a_base64
from codecs import utf_8_decode

from calls import ToolError, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from calls import Call
    from loop import Loop
    from paths import Workspace

    Json = dict[str, Any]

_ANSWER_BYTES = 256 * 1024
_PICTURE_BYTES = 5 * 1024 * 1024
_SCAN_BYTES = 64 * 1024 * 1024  # how far lines are counted from the beginning
_PIECE_BYTES = 256 * 1024
_MOST = 2**53

_PICTURES = ((b"\x89PNG\r\n\x1a\n", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF8", "image/gif"))


def read_file(call: Call, _loop: Loop, workspace: Workspace) -> None:
    """Answer with the file, or the piece of it that was asked for and fits."""
    arguments = call.arguments
    path, offset, limit = arguments["path"], arguments.get("offset", 0), arguments.get("limit", _MOST)
    fd, status = workspace.open_file(path)
    try:
        if arguments.get("encoding", "text") == "base64":
            content = _read_bytes(fd, status.st_size, offset, limit)
        else:
            content = _read_text_or_picture(fd, status.st_size, path, offset, limit)
    finally:
        os.close(fd)
    call.answer(content)


def _read_bytes(fd: int, size: int, offset: int, limit: int) -> list[Json]:
    if offset >= size > 0:
        raise ToolError(f"The file has {size} bytes; there is nothing at byte {offset}.")
    data = _read_at(fd, offset, min(limit, _ANSWER_BYTES))
    content = [text(_base64(data))]
    end = offset + len(data)
    if offset or end < size:
        more = f" Continue with offset {end}." if end < size else ""
        content.append(text(f"[Bytes {offset} to {end} of {size}.{more}]"))
    return content


def _read_text_or_picture(fd: int, size: int, path: str, offset: int, limit: int) -> list[Json]:
    head = _read_at(fd, 0, 8192)
    picture = _picture_type(head)
    if picture and size <= _PICTURE_BYTES:
        data = _base64(_read_at(fd, 0, _PICTURE_BYTES))
        return [{"type": "image", "data": data, "mimeType": picture}, text(f"[{picture}, {size} bytes.]")]
    if b"\0" in head:
        raise ToolError(f"{path!r} is a binary file of {size} bytes. Read it with encoding 'base64'.")
    return _read_lines(fd, size, offset, limit)


def _read_lines(fd: int, size: int, offset: int, limit: int) -> list[Json]:
    start = _end_of_lines(fd, offset)
    data = _read_at(fd, start, _ANSWER_BYTES)
    piece = data[: _end_of_line(data, limit)]
    line_is_cut = False
    if start + len(piece) < size and not piece.endswith(b"\n"):
        whole_lines = piece.rfind(b"\n") + 1
        line_is_cut = whole_lines == 0
        # A line that does not fit at all is given in part, up to a whole character.
        piece = piece[: whole_lines or utf_8_decode(piece, "replace", False)[1]]
    notes = _notes(piece, offset, start, size)
    if line_is_cut:
        end = start + len(piece)
        notes.append(f"Line {offset + 1} does not fit. The rest of it: encoding 'base64' with offset {end}.")
    return [text(piece.decode("utf-8", "replace")), *([text(f"[{' '.join(notes)}]")] if notes else [])]


def _notes(piece: bytes, offset: int, start: int, size: int) -> list[str]:
    notes = []
    lines = piece.count(b"\n") + (not piece.endswith(b"\n"))
    end = start + len(piece)
    if not size:
        notes.append("The file is empty.")
    elif start or end < size:
        notes.append(f"Lines {offset + 1} to {offset + lines}: bytes {start} to {end} of {size}.")
    if end < size and piece.endswith(b"\n"):
        notes.append(f"Continue with offset {offset + lines}.")
    try:
        piece.decode()
    except UnicodeDecodeError:
        notes.append("Some bytes are not valid UTF-8, shown as \ufffd; encoding 'base64' gives them exactly.")
    return notes


def _end_of_lines(fd: int, count: int) -> int:
    """Return where the file goes on after so many lines.

    Raises:
        ToolError: it has not so many, or they reach too far to be counted.
    """
    position, left = 0, count
    while left:
        data = _read_at(fd, position, _PIECE_BYTES)
        if not data:
            raise ToolError(f"The file has only {count - left} lines; offset {count} is behind its end.")
        if position >= _SCAN_BYTES:
            raise ToolError(
                f"Offset {count} is over {_SCAN_BYTES} bytes into the file. Use encoding 'base64'."
            )
        found = min(left, data.count(b"\n"))
        position += _end_of_line(data, found) if found == left else len(data)
        left -= found
    return position


def _end_of_line(data: bytes, number: int) -> int:
    """Return the position after so many lines, or the end of the data when there are fewer."""
    position = 0
    for _ in range(number):
        position = data.find(b"\n", position) + 1
        if not position:
            return len(data)
    return position


def _read_at(fd: int, position: int, size: int) -> bytes:
    data = os.pread(fd, size, position)
    while data and len(data) < size:
        more = os.pread(fd, size - len(data), position + len(data))
        if not more:
            break
        data += more
    return data


def _picture_type(head: bytes) -> str | None:
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for start, kind in _PICTURES if head.startswith(start)), None)


def _base64(data: bytes) -> str:
    return b2a_base64(data, newline=False).decode()
