"""One thread waiting for everything: readable and writable files, ended children, and points in time.

This replaces `asyncio`, which would triple the start and the memory of a server that mostly sleeps.
"""

from __future__ import annotations

# The public module wraps every number in an enum: 2 ms at start for nothing that we use.
import _signal as signal  # type: ignore[import-not-found]
import os
import select
from time import monotonic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Timer:
    """A callback that is due at a point in time, until it is cancelled."""

    __slots__ = ("callback", "due")

    def __init__(self, due: float, callback: Callable[[], None]) -> None:
        self.due = due
        self.callback = callback


class Loop:
    """Calls back when something happens. Callbacks run one at a time and must not block."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._files: dict[int, Callable[[], None]] = {}
        self._timers: list[Timer] = []
        self._children: dict[int, Callable[[int], None]] = {}
        self._running = True
        self._watch_signals()

    def run(self) -> None:
        """Serve until `stop`."""
        while self._running:
            for fd, _ in self._poll.poll(self._milliseconds_to_wait()):
                callback = self._files.get(fd)
                if callback is not None:  # an earlier callback of this round may have forgotten it
                    callback()
            self._run_due_timers()

    def stop(self) -> None:
        self._running = False

    def on_readable(self, fd: int, callback: Callable[[], None]) -> None:
        self._files[fd] = callback
        self._poll.register(fd, select.POLLIN)

    def on_hangup(self, fd: int, callback: Callable[[], None]) -> None:
        """Call back when the other end is closed, whatever there is still to read."""
        self._files[fd] = callback
        self._poll.register(fd, 0)

    def on_writable(self, fd: int, callback: Callable[[], None]) -> None:
        self._files[fd] = callback
        self._poll.register(fd, select.POLLOUT)

    def forget(self, fd: int) -> None:
        """Stop watching the file. Call it before closing. A second call does nothing."""
        if self._files.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def after(self, seconds: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(monotonic() + seconds, callback)
        self._timers.append(timer)
        return timer

    def cancel(self, timer: Timer | None) -> None:
        """Cancel the timer. One that ran, was cancelled or is None is left alone."""
        if timer in self._timers:
            self._timers.remove(timer)

    def on_exit(self, pid: int, callback: Callable[[int], None]) -> None:
        """Call back once with the wait status of this child."""
        self._children[pid] = callback

    def ignore_exit(self, pid: int) -> None:
        """Reap this child without telling anyone. One that has ended already is left alone."""
        if pid in self._children:
            self._children[pid] = _ignore

    def children(self) -> list[int]:
        """The children that have not ended."""
        return list(self._children)

    def _watch_signals(self) -> None:
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _do_nothing)  # a handler must exist for the wake-up byte to be written
        self.on_readable(wake_read, lambda: self._on_signals(wake_read))

    def _on_signals(self, wake_read: int) -> None:
        numbers = os.read(wake_read, 4096)
        if signal.SIGTERM in numbers or signal.SIGINT in numbers:
            self.stop()
        self._reap()

    def _reap(self) -> None:
        """Collect every ended child, orphans of tools included, so that none stays behind as a zombie."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            callback = self._children.pop(pid, None)
            if callback is not None:
                callback(status)

    def _milliseconds_to_wait(self) -> float | None:
        if not self._timers:
            return None
        return max(0.0, min(timer.due for timer in self._timers) - monotonic()) * 1000

    def _run_due_timers(self) -> None:
        now = monotonic()
        for timer in [timer for timer in self._timers if timer.due <= now]:
            if timer in self._timers:  # an earlier one may have cancelled it
                self._timers.remove(timer)
                timer.callback()


def _do_nothing(_number: int, _frame: object) -> None:
    pass


def _ignore(_status: int) -> None:
    pass
