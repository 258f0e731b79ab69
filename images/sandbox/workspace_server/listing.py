"""The tool that lists directories, and the walk over the tree that listing and searching share."""

from __future__ import annotations

import os
import stat

from calls import text
from paths import enter, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator

    from calls import Call
    from loop import Loop
    from paths import Workspace

_DEFAULT_ENTRIES = 1000
_MOST_NAMES = 20_000  # looked at in one directory
_MOST_DEPTH = 40  # each level holds a file open
_LETTERS = {stat.S_IFREG: "file", stat.S_IFDIR: "dir", stat.S_IFLNK: "link"}


class Entry:
    """One name found on a walk."""

    __slots__ = ("directory", "name", "path", "status")

    def __init__(self, directory: int, name: bytes, path: str, status: os.stat_result) -> None:
        self.directory = directory
        self.name = name
        self.path = path
        self.status = status


class Walk:
    """The entries below a directory, sorted, each directory before what it holds. Links are not followed."""

    def __init__(self, *, recursive: bool) -> None:
        self.notes: list[str] = []
        self._recursive = recursive

    def entries(self, directory: int, path: str, depth: int = 0) -> Generator[Entry, None, None]:
        """Yield what is there. What had to be left out is said in `notes`, once all is taken."""
        for name in self._names(directory, path):
            try:
                status = os.lstat(name, dir_fd=directory)
            except OSError:
                continue  # gone meanwhile
            below = f"{path}/{shown(name)}" if path else shown(name)
            yield Entry(directory, name, below, status)
            if self._recursive and stat.S_ISDIR(status.st_mode):
                yield from self._descend(directory, name, below, depth + 1)

    def _descend(self, directory: int, name: bytes, path: str, depth: int) -> Generator[Entry, None, None]:
        if depth >= _MOST_DEPTH:
            self.notes.append(f"{path!r} is {depth} levels deep; what is below it was left out.")
            return
        try:
            fd = enter(directory, name)
        except OSError as error:
            self.notes.append(f"{path!r}: {error.strerror}.")
            return
        try:
            yield from self.entries(fd, path, depth)
        finally:
            os.close(fd)

    def _names(self, directory: int, path: str) -> list[bytes]:
        names: list[bytes] = []
        with os.scandir(directory) as found:
            for entry in found:
                if len(names) == _MOST_NAMES:
                    self.notes.append(
                        f"{path or '.'!r} has over {_MOST_NAMES} entries; the rest was left out."
                    )
                    break
                names.append(os.fsencode(entry.name))
        return sorted(names)


def list_files(call: Call, _loop: Loop, workspace: Workspace) -> None:
    """Answer with one line for each entry."""
    arguments = call.arguments
    most = arguments.get("max_entries", _DEFAULT_ENTRIES)
    path = arguments.get("path", ".")
    directory = workspace.open_directory(path)
    walk = Walk(recursive=arguments.get("recursive", False))
    lines: list[str] = []
    entries = walk.entries(directory, workspace.relative(path))
    try:
        for entry in entries:
            if len(lines) == most:
                walk.notes.append(f"There are more than {most} entries; the rest was left out.")
                break
            lines.append(_line(entry))
    finally:
        entries.close()
        os.close(directory)
    notes = [text(f"[{' '.join(walk.notes[:20])}]")] if walk.notes else []
    call.answer([text("\n".join(lines) or "[The directory is empty.]"), *notes])


def _line(entry: Entry) -> str:
    kind = _LETTERS.get(stat.S_IFMT(entry.status.st_mode), "special")
    size = str(entry.status.st_size) if kind == "file" else "-"
    return f"{kind:<7} {size:>10} {entry.path}"
