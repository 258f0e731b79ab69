"""An engine behind somebody who changes what it is told: a proxy on a Unix socket."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

Change = Callable[[dict[str, Any]], None]


@asynccontextmanager
async def meddling_proxy(engine: str, folder: Path, change: Change) -> AsyncIterator[str]:
    """The address of a proxy to `engine` that applies `change` to every create body."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward = await asyncio.open_unix_connection(engine.removeprefix("unix://"))
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(_forward_requests(reader, onward[1], change))
                    tasks.create_task(_pipe(onward[0], writer))
        except* ConnectionError:
            pass
        finally:
            writer.transport.abort()
            onward[1].transport.abort()

    path = folder / "proxy.sock"
    server = await asyncio.start_unix_server(serve, path)
    async with server:
        yield f"unix://{path}"
        server.close()


async def _forward_requests(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, change: Change
) -> None:
    while not reader.at_eof():
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            break
        length = next(
            (
                int(line.split(b":")[1])
                for line in head.split(b"\r\n")
                if line.lower().startswith(b"content-length:")
            ),
            0,
        )
        body = await reader.readexactly(length)
        if b"/containers/create" in head.split(b"\r\n", 1)[0]:
            head, body = _changed(head, body, change)
        writer.write(head + body)
        if b"upgrade: tcp" in head.lower():
            await _pipe(reader, writer)
    writer.write_eof()


def _changed(head: bytes, body: bytes, change: Change) -> tuple[bytes, bytes]:
    config = json.loads(body)
    change(config)
    changed = json.dumps(config).encode()
    lines = [line for line in head.rstrip().split(b"\r\n") if not line.lower().startswith(b"content-length:")]
    return b"\r\n".join([*lines, b"Content-Length: %d" % len(changed), b"", b""]), changed


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
    with suppress(OSError, RuntimeError):
        writer.write_eof()
