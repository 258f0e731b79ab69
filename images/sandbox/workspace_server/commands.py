"""The tool that runs a shell command: started apart from the server, and ended with all that it started."""

from __future__ import annotations

import os
from time import monotonic

import processes
from calls import ToolError, text
from output import Capture, Live

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from calls import Call, Json
    from loop import Loop, Timer
    from paths import Workspace

_MOST_COMMANDS = 16
_DEFAULT_SECONDS = 60
_ARGUMENT_BYTES = 131_071  # the kernel's limit for one argument
# After the command itself has ended: time for what it left running to say its last words.
_GRACE_SECONDS = 0.2
_LAST_READS = 32  # enough to empty a pipe; bounded in case something that writes could not be killed
_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "TMPDIR": "/tmp",
}

_running: set[Command] = set()
_counter = 0


def execute_command(call: Call, loop: Loop, workspace: Workspace) -> None:
    """Start the command; it answers the call when it has ended."""
    if len(_running) >= _MOST_COMMANDS:
        raise ToolError(f"{_MOST_COMMANDS} commands are running. Wait for one of them to end.")
    Command(call, loop, workspace).start()


class Command:
    """One shell command from its start to its answer."""

    def __init__(self, call: Call, loop: Loop, workspace: Workspace) -> None:
        global _counter  # noqa: PLW0603 - numbers must not repeat in the life of the server
        _counter += 1
        self._tag = f"{os.getpid()}-{_counter}"
        self._call = call
        self._loop = loop
        self._workspace = workspace
        self._captures = {name: Capture(name, workspace) for name in ("stdout", "stderr")}
        self._live = Live(call, loop)
        self._pipes: dict[str, int] = {}
        self._pid = 0
        self._status: int | None = None
        self._started = monotonic()
        self._timer: Timer | None = None
        self._timed_out = False

    def start(self) -> None:
        """Start it.

        Raises:
            ToolError: it cannot be started; nothing is left behind.
        """
        arguments = self._call.arguments
        environment = _environment(arguments.get("env", {}), self._workspace, self._tag)
        shell = _shell(arguments["command"], environment)
        lent = [self._workspace.open_directory(arguments.get("cwd", "."))]  # what only the child keeps
        try:
            lent.append(_stdin_file(arguments.get("stdin", "")))
            lent.extend(self._open_pipe(name) for name in self._captures)
            self._pid = processes.start(shell, *lent)
        except OSError as error:
            self._release()
            raise ToolError(f"The command could not be started: {error.strerror}.") from None
        finally:
            for fd in lent:
                os.close(fd)
        self._watch(arguments.get("timeout_seconds", _DEFAULT_SECONDS))

    def cancel(self) -> None:
        """Kill it with all that it started. The call gets no answer."""
        self._kill()
        self._release()

    def _open_pipe(self, name: str) -> int:
        """Keep the end we read; return the end the child writes."""
        self._pipes[name], write_end = os.pipe()
        os.set_blocking(self._pipes[name], False)
        return write_end

    def _watch(self, timeout_seconds: float) -> None:
        _running.add(self)
        self._call.on_cancel = self.cancel
        self._loop.on_exit(self._pid, self._on_exit)
        for name, fd in self._pipes.items():
            self._loop.on_readable(fd, lambda name=name: self._on_readable(name))  # type: ignore[misc]
        self._timer = self._loop.after(timeout_seconds, self._on_timeout)

    def _on_readable(self, name: str) -> None:
        self._take(name)
        if self._status is not None and not self._pipes:
            self._finish()

    def _take(self, name: str) -> bool:
        """Take what one stream has now; returns whether there may be more."""
        try:
            data = os.read(self._pipes[name], 65536)
        except BlockingIOError:
            return False
        if data:
            self._captures[name].add(data)
            self._live.add(name, data)
        else:
            self._close_pipe(name)
        return bool(data)

    def _on_exit(self, status: int) -> None:
        self._status = status
        self._loop.cancel(self._timer)
        if self._pipes and not self._timed_out:
            self._timer = self._loop.after(_GRACE_SECONDS, self._finish)
        else:
            self._finish()

    def _on_timeout(self) -> None:
        self._timed_out = True
        self._kill()
        # Its exit comes next. One that cannot be killed, because it hangs in the kernel, is not waited for.
        self._timer = self._loop.after(_GRACE_SECONDS, self._finish)

    def _finish(self) -> None:
        left_behind = self._kill()
        for name in list(self._pipes):
            for _ in range(_LAST_READS):
                if not self._take(name):
                    break
        self._live.close()
        self._release()
        is_error = self._timed_out or self._status != 0
        content = [text(self._report(left_behind))]
        self._call.answer(content, is_error=is_error, structured=self._outcome())

    def _kill(self) -> int:
        others = [pid for pid in self._loop.children() if pid != self._pid]
        return processes.kill_call(self._pid, self._tag, others)

    def _release(self) -> None:
        """Let go of everything. What still happens to the process concerns nobody."""
        self._loop.cancel(self._timer)
        self._loop.ignore_exit(self._pid)
        _running.discard(self)
        for name in list(self._pipes):
            self._close_pipe(name)
        for capture in self._captures.values():
            capture.close()

    def _close_pipe(self, name: str) -> None:
        fd = self._pipes.pop(name)
        self._loop.forget(fd)
        os.close(fd)

    def _report(self, left_behind: int) -> str:
        lines = [self._ending()]
        if left_behind:
            what = "1 process" if left_behind == 1 else f"{left_behind} processes"
            lines.append(f"It left {what} running in the background, now stopped.")
        lines += [note for note in (capture.note() for capture in self._captures.values()) if note]
        for name, capture in self._captures.items():
            if capture.total:
                lines.append(f"--- {name} ---\n{capture.text()}")
        return "\n".join(lines)

    def _outcome(self) -> Json:
        """For programs: the exit code as a shell would give it, or null when there was none in time."""
        if self._timed_out or self._status is None:
            return {"exitCode": None}
        if os.WIFSIGNALED(self._status):
            return {"exitCode": 128 + os.WTERMSIG(self._status)}
        return {"exitCode": os.WEXITSTATUS(self._status)}

    def _ending(self) -> str:
        seconds = monotonic() - self._started
        if self._timed_out:
            return f"Timed out: stopped after {seconds:.1f} s. A higher timeout_seconds gives it more time."
        status = self._status or 0
        if os.WIFSIGNALED(status):
            return f"Killed by signal {os.WTERMSIG(status)} after {seconds:.1f} s."
        return f"Exit code {os.WEXITSTATUS(status)} after {seconds:.1f} s."


def _shell(command: str, environment: dict[str, str]) -> Callable[[], None]:
    """Return what the child does: become a shell that runs the command."""
    _refuse_nul(command, "The command")
    if len(command.encode("utf-8", "surrogatepass")) > _ARGUMENT_BYTES:
        raise ToolError(
            f"A command has at most {_ARGUMENT_BYTES} bytes. Write this one to a file and run that."
        )
    shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
    return lambda: os.execve(shell, [shell, "-c", command], environment)  # noqa: S606 - it is a shell


def _environment(extra: dict[str, str], workspace: Workspace, tag: str) -> dict[str, str]:
    for name, value in extra.items():
        if not name or "=" in name:
            raise ToolError(f"{name!r} cannot be the name of an environment variable.")
        _refuse_nul(name + value, f"The environment variable {name!r}")
    return {**_ENVIRONMENT, "HOME": workspace.root, **extra, processes.CALL_VARIABLE: tag}


def _refuse_nul(value: str, what: str) -> None:
    if "\0" in value:
        raise ToolError(f"{what} cannot contain a NUL character.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ToolError(f"{what} is not valid Unicode.") from None


def _stdin_file(content: str) -> int:
    """Return a file to read the content from: no pipe, so nobody has to keep feeding it."""
    if not content:
        return os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    fd = os.memfd_create("stdin", os.MFD_CLOEXEC)
    rest = memoryview(content.encode("utf-8", "replace"))
    while rest:
        rest = rest[os.write(fd, rest) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
