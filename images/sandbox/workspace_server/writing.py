"""The tools that change a file: all of the change is made, or none of it."""

from __future__ import annotations

import os
import stat
from binascii import a2b_base64, b2a_base64
from time import monotonic_ns

from calls import ToolError, text
from paths import FILE_FLAGS, kind_of, refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from calls import Call
    from loop import Loop
    from paths import Workspace

    Json = dict[str, Any]

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_EXTENDED = FILE_FLAGS | os.O_WRONLY | os.O_APPEND | os.O_CREAT
_EDITABLE_BYTES = 8 * 1024 * 1024


def write_file(call: Call, _loop: Loop, workspace: Workspace) -> None:
    """Replace or extend the file and say how much was written."""
    arguments = call.arguments
    path = arguments["path"]
    data = _decoded(arguments["content"], arguments.get("encoding", "text"))
    if arguments.get("append", False):
        total = _append(workspace, path, data)
        call.answer([text(f"Added {len(data)} bytes to {path!r}, which now has {total}.")])
    else:
        _replace(workspace, path, data)
        call.answer([text(f"Wrote {len(data)} bytes to {path!r}.")])


def edit_file(call: Call, _loop: Loop, workspace: Workspace) -> None:
    """Replace pieces of the file and answer with the difference."""
    arguments = call.arguments
    path = arguments["path"]
    before = _read_editable(workspace, path)
    after = before
    for number, edit in enumerate(_edits(arguments)):
        after = _edited(after, edit, number, replace_all=arguments.get("replace_all", False))
    _replace(workspace, path, after.encode())
    from difference import difference  # loaded only for edits: it needs half a megabyte

    call.answer([text(difference(before, after, path))])


def _replace(workspace: Workspace, path: str, data: bytes) -> None:
    """Put a new file in the place of the old one, in one step. When it fails, the old one is as it was."""
    parent, name = workspace.open_parent(path, create=True)
    temporary = f".mcp-write-{os.getpid()}-{monotonic_ns()}"
    try:
        mode = _new_mode(parent, name, path)
        fd = os.open(temporary, _NEW, 0o600, dir_fd=parent)
        try:
            _write_all(fd, data)
            os.fchmod(fd, mode)
            os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
        except OSError:
            os.unlink(temporary, dir_fd=parent)
            raise
        finally:
            os.close(fd)
    except OSError as error:
        raise refusal(error, path) from None
    finally:
        os.close(parent)


def _append(workspace: Workspace, path: str, data: bytes) -> int:
    """Add to the end of the file and return its new size. When it fails, the file is as long as it was."""
    parent, name = workspace.open_parent(path, create=True)
    try:
        _new_mode(parent, name, path)
        fd = os.open(name, _EXTENDED, 0o644, dir_fd=parent)
    except OSError as error:
        raise refusal(error, path) from None
    finally:
        os.close(parent)
    try:
        status = os.fstat(fd)
        _refuse_special(status.st_mode, path)
        try:
            _write_all(fd, data)
        except OSError as error:
            os.ftruncate(fd, status.st_size)
            raise refusal(error, path) from None
        return status.st_size + len(data)
    finally:
        os.close(fd)


def _new_mode(parent: int, name: bytes, path: str) -> int:
    """Return the permissions of the new file: readable, and executable for those for whom the old one was."""
    try:
        mode = os.lstat(name, dir_fd=parent).st_mode
    except FileNotFoundError:
        return 0o644
    _refuse_special(mode, path)
    return 0o644 | (mode & 0o111)


def _refuse_special(mode: int, path: str) -> None:
    if not stat.S_ISREG(mode):
        raise ToolError(f"{path!r} is {kind_of(mode)}; only regular files are accepted.")


def _write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _decoded(content: str, encoding: str) -> bytes:
    try:
        raw = content.encode()
    except UnicodeEncodeError:
        raise ToolError("The content is not valid Unicode. Give such bytes with encoding 'base64'.") from None
    if encoding == "text":
        return raw
    compact = b"".join(raw.split())
    try:
        data = a2b_base64(compact)
    except ValueError:
        data = b""
    # Decoding skips what is not base64; only what comes out again was really there.
    if b2a_base64(data, newline=False) != compact:
        raise ToolError("The content is not base64.")
    return data


def _read_editable(workspace: Workspace, path: str) -> str:
    fd, status = workspace.open_file(path)
    try:
        if status.st_size > _EDITABLE_BYTES:
            raise ToolError(f"{path!r} has {status.st_size} bytes; at most {_EDITABLE_BYTES} can be edited.")
        with os.fdopen(os.dup(fd), "rb") as file:
            return file.read(_EDITABLE_BYTES).decode()
    except UnicodeDecodeError:
        raise ToolError(f"{path!r} is not text in UTF-8 and cannot be edited.") from None
    finally:
        os.close(fd)


def _edits(arguments: Json) -> list[Json]:
    single = [name for name in ("old_text", "new_text") if name in arguments]
    if "edits" in arguments and not single:
        return list(arguments["edits"])
    if len(single) == 2 and "edits" not in arguments:
        return [arguments]
    raise ToolError("Give either old_text and new_text, or edits.")


def _edited(content: str, edit: Json, number: int, *, replace_all: bool) -> str:
    old, new = edit["old_text"], edit["new_text"]
    count = content.count(old)
    if count == 0:
        raise ToolError(f"Edit {number + 1}: old_text does not occur in the file. Nothing was changed.")
    if count > 1 and not replace_all:
        raise ToolError(
            f"Edit {number + 1}: old_text occurs {count} times. Give more of the text around it, or set "
            "replace_all. Nothing was changed."
        )
    if len(content) + count * (len(new) - len(old)) > _EDITABLE_BYTES:
        raise ToolError(
            f"Edit {number + 1} makes the file larger than {_EDITABLE_BYTES} bytes. Nothing was changed."
        )
    return content.replace(old, new)
