"""The tool that searches in files.

The search runs in a child of its own, because a regular expression can take for ever: the child can be killed
and the server goes on. The child writes each match as a line of JSON, and at the end an object with what it
left out.
"""

from __future__ import annotations

import os
import stat

import processes
from calls import ToolError, text
from jsontext import dumps, loads
from listing import Entry, Walk
from paths import FILE_FLAGS, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from calls import Call
    from loop import Loop, Timer
    from paths import Workspace

    Json = dict[str, Any]

_SEARCH_SECONDS = 20
_MOST_SEARCHES = 8
_DEFAULT_RESULTS = 200
_FILE_BYTES = 4 * 1024 * 1024
_LINE_CHARACTERS = 500
_ANSWER_BYTES = 256 * 1024
_UNFINISHED = (
    "The search did not come to its end; there may be more. Narrow it with path, glob or a simpler query."
)

_running: list[Search] = []


def search_files(call: Call, loop: Loop, workspace: Workspace) -> None:
    """Start the search; it answers the call when it has ended."""
    if len(_running) >= _MOST_SEARCHES:
        raise ToolError(f"{_MOST_SEARCHES} searches are running. Wait for one of them to end.")
    Search(call, loop).start(workspace)


class Search:
    """One search from its start to its answer."""

    def __init__(self, call: Call, loop: Loop) -> None:
        self._call = call
        self._loop = loop
        self._found = bytearray()
        self._pid = 0
        self._pipe = -1
        self._timer: Timer | None = None
        self._timed_out = False

    def start(self, workspace: Workspace) -> None:
        """Start it.

        Raises:
            ToolError: the path is not one that can be searched.
        """
        directory, arguments = _opened(self._call.arguments, workspace)
        nothing = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        self._pipe, write_end = os.pipe()
        try:
            self._pid = processes.start(lambda: _search(arguments), directory, nothing, write_end, nothing)
        except OSError as error:
            os.close(self._pipe)
            raise ToolError(f"The search could not be started: {error.strerror}.") from None
        finally:
            for fd in (directory, nothing, write_end):
                os.close(fd)
        _running.append(self)
        self._call.on_cancel = self.cancel
        self._loop.on_exit(self._pid, lambda _status: None)  # the end of its output is what counts
        self._loop.on_readable(self._pipe, self._on_readable)
        self._timer = self._loop.after(_SEARCH_SECONDS, self._on_timeout)

    def cancel(self) -> None:
        """Kill it. The call gets no answer."""
        processes.kill(self._pid)
        self._release()

    def _on_readable(self) -> None:
        data = os.read(self._pipe, 65536)
        self._found += data
        if not data:
            self._finish()

    def _on_timeout(self) -> None:
        self._timed_out = True
        processes.kill(self._pid)

    def _release(self) -> None:
        self._loop.cancel(self._timer)
        self._loop.forget(self._pipe)
        os.close(self._pipe)
        _running.remove(self)

    def _finish(self) -> None:
        self._release()
        *lines, _cut_off = bytes(self._found).split(b"\n")
        results = [loads(line.decode()) for line in lines]
        matches = [result for result in results if isinstance(result, str)]
        ending: Json = results[-1] if results and isinstance(results[-1], dict) else {"notes": [_UNFINISHED]}
        if "error" in ending:
            self._call.answer([text(ending["error"])], is_error=True)
            return
        notes = [f"Stopped after {_SEARCH_SECONDS} s."] * self._timed_out + ending["notes"]
        shown_notes = [text(f"[{' '.join(notes)}]")] if notes else []
        found = text("\n".join(matches) or "[No line matches.]")
        self._call.answer([found, *shown_notes], is_error=_UNFINISHED in notes)


def _opened(arguments: Json, workspace: Workspace) -> tuple[int, Json]:
    """Return the directory to search in and the arguments for the child: one file is found by its name."""
    path = arguments.get("path", ".")
    try:
        directory = workspace.open_directory(path)
        return directory, {**arguments, "path": workspace.relative(path), "only": None}
    except ToolError:
        fd, _ = workspace.open_file(path)
        os.close(fd)
        directory, name = workspace.open_parent(path)
        return directory, {**arguments, "path": workspace.relative(path, up=1), "only": name}


def _search(arguments: Json) -> None:
    """In the child: write what is found in the current directory to standard output."""
    try:
        ending: Json = {"notes": _Searcher(arguments).run()}
    except ToolError as error:
        ending = {"error": str(error)}
    _say(ending)


def _say(value: object) -> None:
    rest = dumps(value) + b"\n"
    while rest:
        rest = rest[os.write(1, rest) :]


class _Searcher:
    """The search itself, in the child."""

    def __init__(self, arguments: Json) -> None:
        self._path = arguments["path"]
        self._only = arguments["only"]
        self._left = arguments.get("max_results", _DEFAULT_RESULTS)
        self._bytes_left = _ANSWER_BYTES
        self._matches = _matcher(arguments["query"], is_regex=arguments.get("regex", False))
        self._wanted = _name_filter(arguments.get("glob"))
        self._skipped = {"binary": 0, "larger than 4 MiB": 0, "unreadable": 0}

    def run(self) -> list[str]:
        """Say each match; return the notes on what was left out."""
        walk = Walk(recursive=True)
        here = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for entry in walk.entries(here, self._path):
            if self._is_wanted(entry) and not self._search_file(entry):
                return ["There are more matches. Narrow the query or raise max_results."]
        skipped = [f"{count} {why}" for why, count in self._skipped.items() if count]
        return walk.notes[:20] + ([f"Skipped files: {', '.join(skipped)}."] if skipped else [])

    def _is_wanted(self, entry: Entry) -> bool:
        if not stat.S_ISREG(entry.status.st_mode) or (self._only and entry.name != self._only):
            return False
        return self._wanted(entry)

    def _search_file(self, entry: Entry) -> bool:
        """Say the matches of one file; returns False when there is no room for more."""
        for number, line in enumerate(self._lines(entry), start=1):
            if self._matches(line):
                match = f"{entry.path}:{number}:{line[:_LINE_CHARACTERS]}"
                self._left -= 1
                self._bytes_left -= len(match)
                if self._left < 0 or self._bytes_left < 0:
                    return False
                _say(match)
        return True

    def _lines(self, entry: Entry) -> list[str]:
        if entry.status.st_size > _FILE_BYTES:
            self._skipped["larger than 4 MiB"] += 1
            return []
        try:
            data = _content(entry)
        except OSError:
            self._skipped["unreadable"] += 1
            return []
        if b"\0" in data[:8192]:
            self._skipped["binary"] += 1
            return []
        return data.decode("utf-8", "replace").removesuffix("\n").split("\n")


def _content(entry: Entry) -> bytes:
    fd = os.open(entry.name, FILE_FLAGS, dir_fd=entry.directory)
    with os.fdopen(fd, "rb") as file:
        return file.read(_FILE_BYTES)


def _matcher(query: str, *, is_regex: bool) -> Callable[[str], object]:
    if not is_regex:
        return lambda line: query in line
    import re

    try:
        return re.compile(query).search
    except (re.error, RecursionError, OverflowError) as error:
        raise ToolError(f"The query is not a regular expression that can be used: {error}.") from None


def _name_filter(glob: str | None) -> Callable[[Entry], bool]:
    if glob is None:
        return lambda _entry: True
    from fnmatch import fnmatchcase

    return lambda entry: fnmatchcase(shown(entry.name), glob) or fnmatchcase(entry.path, glob)
