"""The streams of a server over pipes: fair, bounded, and whole whatever is cancelled."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import ExitStack, suppress

import pytest

from mcp_orchestrator.sandbox.backend import MIB, SandboxGone
from mcp_orchestrator.sandbox.bubblewrap.streams import PipeStreams


class Server:
    """The other ends of the pipes."""

    def __init__(self) -> None:
        self.stdin, ours_in = os.pipe()
        ours_out, self.stdout = os.pipe()
        ours_err, self.stderr = os.pipe()
        self.streams = PipeStreams("box", ours_in, ours_out, ours_err)

    def die(self) -> None:
        for descriptor in (self.stdin, self.stdout, self.stderr):
            with suppress(OSError):
                os.close(descriptor)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    with ExitStack() as stack:
        made = Server()
        stack.callback(made.die)
        stack.callback(made.streams.close)
        yield made


async def test_neither_stream_waits_for_the_other_to_fall_silent(server: Server) -> None:
    for _ in range(3):
        os.write(server.stdout, b"o" * 20_000)
        os.write(server.stderr, b"e" * 20_000)
    sources = []
    for _ in range(4):
        output = await server.streams.read()
        assert output is not None
        sources.append(output.source)
        os.write(getattr(server, output.source), b"more")
    assert sources == ["stdout", "stderr", "stdout", "stderr"]


async def test_the_end_of_one_stream_is_not_the_end(server: Server) -> None:
    os.close(server.stdout)
    os.write(server.stderr, b"last words")
    output = await server.streams.read()
    assert output is not None
    assert output.data == b"last words"
    server.die()
    assert await server.streams.read() is None
    assert await server.streams.read() is None


async def test_a_cancelled_read_loses_nothing(server: Server) -> None:
    reading = asyncio.create_task(server.streams.read())
    await asyncio.sleep(0)
    os.write(server.stdout, b"data")
    reading.cancel()
    await asyncio.wait([reading])
    output = await server.streams.read()
    assert output is not None
    assert output.data == b"data"


async def test_what_two_tasks_write_at_once_is_not_mixed(server: Server) -> None:
    writing = [asyncio.create_task(server.streams.write(letter * MIB)) for letter in (b"a", b"b")]
    received = b""
    os.set_blocking(server.stdin, False)
    async with asyncio.timeout(5):
        while len(received) < 2 * MIB:
            with suppress(BlockingIOError):
                received += os.read(server.stdin, MIB)
            await asyncio.sleep(0)
    await asyncio.gather(*writing)
    assert received == b"a" * MIB + b"b" * MIB


async def test_a_writer_learns_that_nobody_reads_any_more(server: Server) -> None:
    writing = asyncio.create_task(server.streams.write(bytes(MIB)))
    await asyncio.sleep(0)
    server.die()
    async with asyncio.timeout(5):
        with pytest.raises(SandboxGone):
            await writing


async def test_closing_wakes_whoever_waits(server: Server) -> None:
    reading = asyncio.create_task(server.streams.read())
    writing = asyncio.create_task(server.streams.write(bytes(MIB)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    server.streams.close()
    server.streams.close()
    async with asyncio.timeout(5):
        assert await reading is None
        with pytest.raises(SandboxGone):
            await writing
