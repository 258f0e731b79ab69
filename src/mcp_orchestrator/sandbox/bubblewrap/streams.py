"""The standard streams of a server over three pipes, without a buffer of our own.

Bytes stay in the kernel's pipes until somebody asks for them, so a server that floods
or does not read costs no memory here and is slowed down by itself. Nothing is taken
from a pipe before it is returned: a cancelled read loses nothing.
"""

import asyncio
import os
from typing import Literal

from mcp_orchestrator.sandbox.backend import Output, SandboxGone

CHUNK_BYTES = 64 * 1024

Source = Literal["stdout", "stderr"]


class PipeStreams:
    """Our ends of the pipes; they are closed by `close` and by nothing else."""

    def __init__(self, name: str, stdin: int, stdout: int, stderr: int) -> None:
        self.is_fresh = True
        self._name = name
        self._stdin = stdin
        self._open: dict[Source, int] = {"stdout": stdout, "stderr": stderr}
        self._waiting: set[asyncio.Future[None]] = set()
        self._is_closed = False
        self._writing = asyncio.Lock()
        for descriptor in (stdin, stdout, stderr):
            os.set_blocking(descriptor, False)

    async def read(self) -> Output | None:
        """The next bytes of either stream, in turns when both have some; None when both ended."""
        # A flood must not keep everybody else from running.
        await asyncio.sleep(0)
        while not self._is_closed and self._open:
            for source, descriptor in list(self._open.items()):
                data = _read_now(descriptor)
                if data is None:
                    continue
                del self._open[source]
                if data:
                    # Last in the order: the other one comes first next time.
                    self._open[source] = descriptor
                    return Output(source, data)
                os.close(descriptor)
            await self._ready(readers=list(self._open.values()))
        return None

    async def write(self, data: bytes) -> None:
        """Hand over all of it; what two tasks write at once is not mixed."""
        async with self._writing:
            await self._write(memoryview(data))

    async def _write(self, rest: memoryview) -> None:
        while rest:
            if self._is_closed:
                raise SandboxGone(f"Sandbox '{self._name}' is not there any more.")
            try:
                rest = rest[os.write(self._stdin, rest[:CHUNK_BYTES]) :]
            except BlockingIOError:
                await self._ready(writer=self._stdin)
            except BrokenPipeError as error:
                raise SandboxGone(f"Sandbox '{self._name}' stopped: nobody reads its input.") from error

    def close_input(self) -> None:
        """Tell the server that nothing more comes."""
        if not self._is_closed and self._stdin >= 0:
            asyncio.get_running_loop().remove_writer(self._stdin)
            os.close(self._stdin)
            self._stdin = -1

    def close(self) -> None:
        """Close all; whoever waits is told the end. A second call does nothing."""
        if self._is_closed:
            return
        self.close_input()
        self._is_closed = True
        for descriptor in self._open.values():
            asyncio.get_running_loop().remove_reader(descriptor)
            os.close(descriptor)
        for future in self._waiting:
            _resolve(future)

    async def _ready(self, *, readers: list[int] | None = None, writer: int | None = None) -> None:
        if not readers and writer is None:
            return
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._waiting.add(future)
        for descriptor in readers or []:
            loop.add_reader(descriptor, _resolve, future)
        if writer is not None:
            loop.add_writer(writer, _resolve, future)
        try:
            await future
        finally:
            self._waiting.discard(future)
            if not self._is_closed:
                for descriptor in readers or []:
                    loop.remove_reader(descriptor)
                if writer is not None:
                    loop.remove_writer(writer)


def _read_now(descriptor: int) -> bytes | None:
    """What is there, empty at the end, or None when one has to wait."""
    try:
        return os.read(descriptor, CHUNK_BYTES)
    except BlockingIOError:
        return None


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
