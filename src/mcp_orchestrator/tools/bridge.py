"""The SDK's transport over a sandbox's streams: lines out, messages in, everything bounded.

Reading happens in the SDK's own receive loop, and a line is written by a task
that ends with it: no queue stands between a call and the stream, so nothing
here can grow. A server that floods, mumbles without end or does not read loses its
connection; the sandbox itself is the owner's to remove.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import (
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCResponse,
    RequestId,
)

from mcp_orchestrator.sandbox.backend import ByteStreams, SandboxError
from mcp_orchestrator.tools.lines import LineAssembler, OversizedLine
from mcp_orchestrator.tools.messages import NotAMessage, parse_message, unread_answer

MIB: Final = 1024 * 1024
# How long the loop works on one burst before others get their turn.
_SLICE_SECONDS: Final = 0.005

ProgressSink = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class BridgeLimits:
    """What a server may do to us before its connection ends."""

    # Above it a line is skipped and its request answered with an error.
    line_bytes: int = 16 * MIB
    # Above it a line is not even skipped: it would never end.
    skipped_bytes: int = 256 * MIB
    noise_lines: int = 1_000
    # What nobody asked for (notifications, requests, answers to nothing): a burst, then a trickle.
    unsolicited_bytes: int = 64 * MIB
    unsolicited_bytes_per_second: int = 4 * MIB
    unsolicited_messages: int = 5_000
    unsolicited_messages_per_second: int = 500
    # A server that does not take a message in this time is stuck.
    write_seconds: float = 30
    stderr_bytes: int = 64 * 1024


@dataclass
class Allowance:
    """Something that may be used up in a burst and comes back with time."""

    burst: float
    per_second: float
    left: float = field(init=False)
    at: float | None = None

    def __post_init__(self) -> None:
        self.left = self.burst

    def use(self, amount: float, now: float) -> bool:
        """Take `amount`; False when it is not there."""
        elapsed = now - self.at if self.at is not None else 0.0
        self.at = now
        self.left = min(self.burst, self.left + elapsed * self.per_second) - amount
        return self.left >= 0


class Bridge:
    """One connection to one server, seen from the SDK as a pair of message streams."""

    def __init__(self, streams: ByteStreams, limits: BridgeLimits = BridgeLimits()) -> None:
        self._streams = streams
        self._limits = limits
        self._lines = LineAssembler(limits.line_bytes)
        self._arrived: deque[bytearray | OversizedLine] = deque()
        self._stderr: deque[bytes] = deque()
        self._stderr_length = 0
        self._noise = 0
        self._bytes = Allowance(limits.unsolicited_bytes, limits.unsolicited_bytes_per_second)
        self._messages = Allowance(limits.unsolicited_messages, limits.unsolicited_messages_per_second)
        self._awaited: dict[RequestId, ProgressSink | None] = {}
        self._writing = asyncio.Lock()
        self._writes: set[asyncio.Task[None]] = set()
        self._reading = anyio.CancelScope()
        self._is_ended = False
        self._slice_ends = 0.0
        self.ending = ""
        """Why the connection ended, as a sentence; empty while it lives."""

    def stderr_tail(self) -> str:
        """The last the server said on stderr."""
        return b"".join(self._stderr)[-self._limits.stderr_bytes :].decode(errors="replace")

    def expect(self, request_id: RequestId, progress: ProgressSink | None) -> None:
        """Let the answer to this request, and its progress, through."""
        self._awaited[request_id] = progress

    def forget(self, request_id: RequestId) -> None:
        """Whatever comes for this request from now on is dropped."""
        self._awaited.pop(request_id, None)

    def end(self, reason: str) -> None:
        """Close it; the first reason is the one that counts."""
        self.ending = self.ending or reason
        self._is_ended = True
        self._reading.cancel()
        for writing in self._writes:
            if writing is not asyncio.current_task():
                writing.cancel()

    async def next_message(self) -> JSONRPCMessage | None:
        """The next message somebody should see, or None at the end."""
        while not self._is_ended:
            await self._share_the_loop()
            if not self._arrived:
                await self._read_more()
            elif message := self._understand(self._arrived.popleft()):
                return message
        return None

    async def write(self, message: JSONRPCMessage) -> None:
        """Hand a message to the server.

        Raises:
            anyio.BrokenResourceError: the connection has ended, or ends because of this write.
        """
        if self._is_ended:
            raise anyio.BrokenResourceError
        line = message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
        # Whoever waits may be cancelled; a line that was begun is finished, or the next would be glued to it.
        writing = asyncio.create_task(self._write_line(line))
        self._writes.add(writing)
        writing.add_done_callback(self._writes.discard)
        await asyncio.wait((writing,))
        if self._is_ended:
            raise anyio.BrokenResourceError
        writing.result()

    async def _write_line(self, line: bytes) -> None:
        try:
            async with asyncio.timeout(self._limits.write_seconds), self._writing:
                await self._streams.write(line)
        except TimeoutError:
            self.end(f"The server did not read its input for {self._limits.write_seconds:.0f} s.")
        except SandboxError as error:
            self.end(str(error))

    async def clear_line(self) -> None:
        """End what a dead holder of these streams may have left half written."""
        with suppress(SandboxError, TimeoutError):
            async with asyncio.timeout(self._limits.write_seconds):
                await self._streams.write(b"\n")

    async def _read_more(self) -> None:
        try:
            with anyio.CancelScope() as self._reading:
                output = await self._streams.read()
        except SandboxError as error:
            self.end(str(error))
            return
        if self._reading.cancelled_caught:
            return
        if output is None:
            self.end("The server closed its output or exited.")
        elif output.source == "stderr":
            self._keep_stderr(output.data)
        else:
            self._arrived.extend(self._lines.feed(output.data))
            if self._lines.pending_bytes > self._limits.skipped_bytes:
                self.end(f"The server wrote a line of more than {self._limits.skipped_bytes} bytes.")

    def _understand(self, line: bytearray | OversizedLine) -> JSONRPCMessage | None:
        if isinstance(line, OversizedLine):
            message: JSONRPCMessage | None = unread_answer(
                line, f"more than {self._limits.line_bytes} are too many"
            )
            size = line.length
        elif not line.strip():
            return None
        else:
            size = len(line)
            try:
                message = parse_message(line)
            except NotAMessage:
                message = None
        if message is None:
            self._count_noise(size)
            return None
        return self._admit(message, size)

    def _admit(self, message: JSONRPCMessage, size: int) -> JSONRPCMessage | None:
        """Pass on what was asked for and what fits the allowance; drop answers to nothing."""
        match message:
            case JSONRPCResponse(id=request_id) | JSONRPCError(id=request_id) if request_id in self._awaited:
                # The first answer wins: the second finds nobody waiting.
                self.forget(request_id)
                return message
            case JSONRPCNotification(method="notifications/progress", params=dict() as params):
                self._count_unsolicited(size)
                if sink := self._awaited.get(params.get("progressToken", "")):
                    sink(params)
                return None
            case JSONRPCResponse() | JSONRPCError():
                self._count_unsolicited(size)
                return None
            case _:
                self._count_unsolicited(size)
                return None if self._is_ended else message

    def _count_noise(self, size: int) -> None:
        self._noise += 1
        if self._noise > self._limits.noise_lines:
            self.end("The server writes to stdout what is no JSON-RPC, again and again.")
        self._count_unsolicited(size)

    def _count_unsolicited(self, size: int) -> None:
        now = asyncio.get_running_loop().time()
        if not (self._bytes.use(size, now) & self._messages.use(1, now)):
            self.end("The server floods us with messages nobody asked for.")

    def _keep_stderr(self, data: bytes) -> None:
        self._stderr.append(data)
        self._stderr_length += len(data)
        while self._stderr and self._stderr_length - len(self._stderr[0]) >= self._limits.stderr_bytes:
            self._stderr_length -= len(self._stderr.popleft())

    async def _share_the_loop(self) -> None:
        """Buffered lines could otherwise be worked off without anybody else getting a turn."""
        now = asyncio.get_running_loop().time()
        if now > self._slice_ends:
            await asyncio.sleep(0)
            self._slice_ends = asyncio.get_running_loop().time() + _SLICE_SECONDS


class _Stream:
    """What both halves share of the SDK's stream protocol: leaving one ends the connection."""

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge

    async def aclose(self) -> None:
        self._bridge.end("The connection was closed.")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()


class IncomingMessages(_Stream):
    """The SDK's `ReadStream`."""

    async def receive(self) -> SessionMessage | Exception:
        message = await self._bridge.next_message()
        if message is None:
            raise anyio.EndOfStream
        return SessionMessage(message)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None


class OutgoingMessages(_Stream):
    """The SDK's `WriteStream`."""

    async def send(self, item: SessionMessage, /) -> None:
        await self._bridge.write(item.message)
