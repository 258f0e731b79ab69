"""A server made of recorded bytes, for what no real one does on demand."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from mcp_orchestrator.sandbox.backend import ByteStreams, Output, SandboxGone

Answer = Callable[[dict[str, Any]], list[bytes]]

DISCOVERED = {
    "resultType": "complete",
    "supportedVersions": ["2026-07-28"],
    "capabilities": {"tools": {}},
    "ttlMs": 0,
    "cacheScope": "public",
}
LISTED: dict[str, Any] = {
    "resultType": "complete",
    "tools": [{"name": "echo", "inputSchema": {"type": "object"}}],
    "ttlMs": 0,
    "cacheScope": "public",
}


def line(**members: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **members}, ensure_ascii=False).encode() + b"\n"


def result(request: dict[str, Any], **members: Any) -> bytes:
    return line(id=request["id"], result={"resultType": "complete", **members})


def text(request: dict[str, Any], value: str) -> bytes:
    return result(request, content=[{"type": "text", "text": value}])


class ScriptedStreams:
    """`ByteStreams` whose server answers each tool call with what `answer` returns."""

    def __init__(self, answer: Answer) -> None:
        self.is_fresh = True
        self.received: list[dict[str, Any]] = []
        self.raw = b""
        self._answer = answer
        self._outputs: asyncio.Queue[Output | None] = asyncio.Queue()
        self._gone = False

    def say(self, *pieces: bytes, source: str = "stdout") -> None:
        for piece in pieces:
            self._outputs.put_nowait(Output("stderr" if source == "stderr" else "stdout", piece))

    def die(self) -> None:
        self._gone = True
        self._outputs.put_nowait(None)

    async def read(self) -> Output | None:
        return await self._outputs.get()

    async def write(self, data: bytes) -> None:
        if self._gone:
            raise SandboxGone("dead")
        self.raw += data
        for received in filter(None, data.split(b"\n")):
            self._hear(json.loads(received))

    def _hear(self, message: dict[str, Any]) -> None:
        self.received.append(message)
        match message:
            case {"method": "server/discover"}:
                self.say(line(id=message["id"], result=DISCOVERED))
            case {"method": "tools/list"}:
                self.say(line(id=message["id"], result=LISTED))
            case {"method": "tools/call"}:
                self.say(*self._answer(message))


class ScriptedSandbox:
    """Just enough of a `Sandbox` to be attached to."""

    def __init__(self, streams: ScriptedStreams) -> None:
        self.id = self.name = "scripted"
        self._streams = streams

    @asynccontextmanager
    async def attach(self) -> AsyncIterator[ByteStreams]:
        yield self._streams
