"""The processes below this server: starting them apart from it, finding those of one call, and ending them.

The server is the subreaper of its tools, so every process that a tool started is its descendant, even after
`setsid` or a double fork. To which call it belongs is told by its session, its parents, and a variable in its
environment.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # the type checker knows only the public one
import os

from kernel import leave_for_good, set_dumpable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection

CALL_VARIABLE = "MCP_CALL_ID"
_KILL_ROUNDS = 100  # each round finds what was forked during the one before; a fork bomb needs several
_MOST_FILES = 4096  # far above what the server opens; the limit of the system may be a thousand million


def start(run: Callable[[], None], directory: int, *standard: int) -> int:
    """Fork a child that runs the function in the directory, and return its pid.

    The child has only the three given files, a session of its own, and is the first that the kernel kills
    when memory runs out. The function may replace the program; if it returns, the child exits with 0, else
    with 127.
    """
    pid = os.fork()
    if pid:
        return pid
    status = 127
    try:
        os.setsid()
        os.fchdir(directory)
        _leave_the_server(standard)
        run()
        status = 0
    except BaseException as error:
        os.write(2, f"{error}\n".encode(errors="replace"))
    finally:
        os._exit(status)


def kill_all() -> None:
    """Kill every process below this one."""
    kill_call(0, "", ())


def kill_call(leader: int, tag: str, others: Collection[int]) -> int:
    """Kill every process of the call and return how many there were.

    `others` are the children that belong to other calls. When there are none, whatever is still below us
    belongs to this call, even if it hid every mark of it.
    """
    killed: set[int] = set()
    for _ in range(_KILL_ROUNDS):
        new = _members(leader, tag, others) - killed
        if not new:
            break
        for pid in new:
            kill(pid)
        killed |= new
    return len(killed)


def kill(pid: int) -> None:
    """Kill one child of ours. One that has ended already is left alone."""
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        pass  # it ended by itself


def _leave_the_server(standard: tuple[int, ...]) -> None:
    for target, fd in enumerate(standard):
        os.dup2(fd, target)
    os.closerange(3, _MOST_FILES)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python ignores these two; a new program would inherit that
    _be_killed_first()
    leave_for_good()


def _be_killed_first() -> None:
    """Let the kernel take this process, not the server, when memory runs out."""
    # /proc/self belongs to root while we are not dumpable. By now nothing of the server is open any more.
    set_dumpable(True)
    try:
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        os.write(fd, b"1000")
        os.close(fd)
    except OSError:
        pass  # not offered here; the limits of the sandbox still hold
    set_dumpable(False)


def _members(leader: int, tag: str, others: Collection[int]) -> set[int]:
    family = _family()
    if not others:
        return set(family)
    mark = f"{CALL_VARIABLE}={tag}".encode()
    members = {pid for pid, (_, session) in family.items() if leader in (pid, session) or _carries(pid, mark)}
    return members | _below(members, family)


def _family() -> dict[int, tuple[int, int]]:
    """Return parent and session of each living process below this one."""
    everything = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            entry = _parent_and_session(name)
            if entry is not None:
                everything[int(name)] = entry
    return {pid: everything[pid] for pid in _below({os.getpid()}, everything)}


def _below(roots: set[int], processes: dict[int, tuple[int, int]]) -> set[int]:
    found: set[int] = set()
    parents = roots
    while parents:
        parents = {pid for pid, (parent, _) in processes.items() if parent in parents} - found
        found |= parents
    return found


def _parent_and_session(pid: str) -> tuple[int, int] | None:
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()  # the name in brackets may hold anything
    # A process whose first thread has ended looks like a zombie, but its other threads live.
    if len(fields) < 18 or (fields[0] in (b"Z", b"X") and int(fields[17]) < 2):
        return None
    return int(fields[1]), int(fields[3])


def _carries(pid: int, mark: bytes) -> bool:
    return mark in _read(f"/proc/{pid}/environ").split(b"\0")


def _read(path: str) -> bytes:
    """Return the start of the file, or nothing when the process is gone or closed to us."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, 65536)
    except OSError:
        return b""
    finally:
        os.close(fd)
