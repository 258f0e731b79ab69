"""A program we started, watched without a thread: its streams, its end, its death."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence

from mcp_orchestrator.sandbox.bubblewrap.streams import PipeStreams


class Process:
    """Starts at once, in the thread that must outlive it: bwrap ends with the thread that made it.

    It gets an empty environment and no descriptor but its streams and those named.
    """

    def __init__(self, name: str, command: Sequence[str], descriptors: Sequence[int]) -> None:
        pipe = subprocess.PIPE
        self._popen = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, env={}, cwd="/", pass_fds=descriptors
        )
        self.streams = PipeStreams(name, *self._pipes())
        self._pidfd = os.pidfd_open(self._popen.pid)
        self._ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._pidfd, self._reap)

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def exit_code(self) -> int | None:
        """As a shell tells it, or None while it runs."""
        code = self._popen.returncode
        return 128 - code if code is not None and code < 0 else code

    async def ended(self) -> int:
        """Wait for the exit code."""
        await self._ended.wait()
        assert self.exit_code is not None
        return self.exit_code

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._popen.send_signal(signal.SIGKILL)

    async def end(self) -> None:
        """Kill it if it runs and close its streams."""
        self.kill()
        await self.ended()
        self.streams.close()

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._popen.wait()
        self._ended.set()

    def _pipes(self) -> list[int]:
        """Our ends, taken over from the file objects around them."""
        files = (self._popen.stdin, self._popen.stdout, self._popen.stderr)
        numbers = []
        for file in files:
            assert file is not None
            numbers.append(os.dup(file.fileno()))
            file.close()
        return numbers
