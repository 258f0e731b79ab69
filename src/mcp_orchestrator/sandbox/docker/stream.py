"""The attach stream of an engine: one upgraded connection, demultiplexed. Bytes only.

Written here, and not taken from the client library, because this is the path
of every byte of every tool call: it must bound what it holds, pass on parts of
frames at once, and never trust a header.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final, Literal, NamedTuple
from urllib.parse import urlsplit

from mcp_orchestrator.sandbox.backend import (
    BackendUnavailable,
    Output,
    SandboxFailed,
    SandboxGone,
    SandboxStreamBroken,
)

_READ_BYTES: Final = 256 * 1024
_HEADER_BYTES: Final = 8
# Engines copy through buffers of some ten kilobytes; a frame above this is no frame.
_MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
# An engine that does not even answer the upgrade in this time is not going to.
_UPGRADE_SECONDS: Final = 30
_SOURCES: Final[dict[int, Literal["stdout", "stderr"]]] = {1: "stdout", 2: "stderr"}


class Endpoint(NamedTuple):
    """Where an engine listens: `unix:///path`, or `tcp://host:port` with or without TLS."""

    url: str
    tls: ssl.SSLContext | None = None


class FrameDecoder:
    """Takes the engine's multiplexed bytes in any cut; gives what each stream said.

    Payload is passed on as it comes, so a frame that claims a huge length costs nothing.
    """

    def __init__(self) -> None:
        self._header = bytearray()
        self._source: Literal["stdout", "stderr"] = "stdout"
        self._remaining = 0

    def feed(self, data: bytes) -> list[Output]:
        """What these bytes add.

        Raises:
            SandboxStreamBroken: a header that no engine writes.
        """
        outputs: list[Output] = []
        position = 0
        while position < len(data):
            if self._remaining:
                piece = data[position : position + self._remaining]
                outputs.append(Output(self._source, piece))
                self._remaining -= len(piece)
                position += len(piece)
            else:
                missing = _HEADER_BYTES - len(self._header)
                self._header += data[position : position + missing]
                position += missing
                self._open_frame()
        return outputs

    def _open_frame(self) -> None:
        if len(self._header) < _HEADER_BYTES:
            return
        source = _SOURCES.get(self._header[0])
        length = int.from_bytes(self._header[4:8], "big")
        if source is None or self._header[1:4] != b"\0\0\0" or length > _MAX_FRAME_BYTES:
            raise SandboxStreamBroken(f"The engine's stream has a frame header {bytes(self._header).hex()}.")
        self._source, self._remaining = source, length
        self._header.clear()


class EngineStream:
    """`ByteStreams` over one upgraded connection."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_fresh: bool = True
    ) -> None:
        self.is_fresh = is_fresh
        self._reader = reader
        self._writer = writer
        self._decoder = FrameDecoder()
        self._decoded: deque[Output] = deque()
        self._ended = False

    async def read(self) -> Output | None:
        """See `ByteStreams.read`. A connection cut short reads as the end."""
        while not self._decoded:
            try:
                data = b"" if self._ended else await self._reader.read(_READ_BYTES)
            except ConnectionError:
                data = b""
            if not data:
                self._ended = True
                return None
            self._decoded.extend(self._decoder.feed(data))
        return self._decoded.popleft()

    async def write(self, data: bytes) -> None:
        """See `ByteStreams.write`."""
        # A dead container's connection swallows writes without an error: only its end tells.
        if self._ended or self._reader.at_eof():
            raise SandboxGone("The sandbox stopped; it takes no more input.")
        try:
            self._writer.write(data)
            await self._writer.drain()
        except (ConnectionError, RuntimeError) as error:
            raise SandboxGone("The sandbox stopped while it was written to.") from error

    async def end_input(self) -> None:
        """Tell the other side that no more input comes. Never for an attach: its reading ends too."""
        with suppress(OSError, RuntimeError):
            self._writer.write_eof()

    async def close(self) -> None:
        """Hang up. What runs on the other side goes on."""
        self._ended = True
        # Unsent bytes must not hold us: they were for somebody who does not read.
        self._writer.transport.abort()
        with suppress(OSError):
            await self._writer.wait_closed()


async def open_stream(endpoint: Endpoint, target: str, body: bytes = b"") -> EngineStream:
    """POST `target` and take over the connection.

    Raises:
        SandboxGone: the engine does not know the container, or it does not run.
        SandboxFailed: the engine refused for another reason, or did not answer.
    """
    try:
        async with asyncio.timeout(_UPGRADE_SECONDS):
            reader, writer = await _connect(endpoint)
            try:
                await _upgrade(reader, writer, target, body)
            except BaseException:
                writer.transport.abort()
                raise
    except TimeoutError as error:
        raise SandboxFailed(f"The engine did not open a stream within {_UPGRADE_SECONDS} s.") from error
    except OSError as error:
        raise SandboxFailed(f"The engine cannot be reached: {error}") from error
    return EngineStream(reader, writer)


@asynccontextmanager
async def opened_stream(endpoint: Endpoint, target: str, body: bytes = b"") -> AsyncIterator[EngineStream]:
    stream = await open_stream(endpoint, target, body)
    try:
        yield stream
    finally:
        await stream.close()


async def _connect(endpoint: Endpoint) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    url = urlsplit(endpoint.url)
    match url.scheme:
        case "unix":
            return await asyncio.open_unix_connection(url.path, limit=_READ_BYTES)
        case "tcp" | "http" | "https" if url.hostname:
            port = url.port or (2376 if endpoint.tls else 2375)
            return await asyncio.open_connection(url.hostname, port, ssl=endpoint.tls, limit=_READ_BYTES)
        case _:
            raise BackendUnavailable(
                f"DOCKER_HOST={endpoint.url} is not supported; use unix:///path or tcp://host:port."
            )


async def _upgrade(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: str, body: bytes
) -> None:
    writer.write(
        f"POST {target} HTTP/1.1\r\nHost: engine\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    await writer.drain()
    head = await _head(reader)
    status = int(head.split(b" ", 2)[1])
    # 101 in answer to the upgrade; 200 from engines and proxies that ignore the header.
    if status in (101, 200):
        return
    reason = (await reader.read(2048)).decode(errors="replace").strip()
    problem = SandboxGone if status in (404, 409) else SandboxFailed
    raise problem(f"The engine answered {status} when the sandbox was attached: {reason}")


async def _head(reader: asyncio.StreamReader) -> bytes:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise SandboxFailed("The engine closed the connection instead of attaching.") from error
    if not head.startswith(b"HTTP/1."):
        raise SandboxFailed("What answers is not an engine.")
    return head
