"""The tools of one sandbox: connect, list, call, close.

`open_toolbox` is entered and left by one task, the owner of the connection;
calls may come from any task meanwhile.
"""

import asyncio
import itertools
import logging
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

import mcp_types as types
from mcp.client.session import ClientSession, IncomingMessage
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost, listen
from mcp.shared.dispatcher import CallOptions, Dispatcher, OnNotify, OnNotifyIntercept, OnRequest
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.transport_context import TransportContext
from pydantic import ValidationError

from mcp_orchestrator.errors import OrchestratorError
from mcp_orchestrator.sandbox.backend import Sandbox
from mcp_orchestrator.tools.bridge import Bridge, BridgeLimits, IncomingMessages, OutgoingMessages
from mcp_orchestrator.tools.catalogue import Catalogue

logger = logging.getLogger(__name__)

Era = Literal["auto", "handshake"]

FACTS_KEY: Final = "io.mcp-orchestrator/sandbox"
STREAM_KEY: Final = "io.mcp-orchestrator/stream"
_CLIENT: Final = types.Implementation(name="mcp-orchestrator", version="0.1.0")
_MOST_PAGES: Final = 100
_LIST_SECONDS: Final = 60
# The SDK keeps the time of a call; this much later we stop waiting even for our own words to be read.
_GRACE_SECONDS: Final = 1
_MOST_WAITING_OUTPUTS: Final = 1_000


class ToolsError(OrchestratorError):
    """Base of what goes wrong between us and a server: never what a tool answered."""


class ToolsUnavailable(ToolsError):
    """The server never came to the point of listing its tools."""


class ToolsLost(ToolsError):
    """The connection ended; what became of a call under way is unknown."""


class CallTimedOut(ToolsError):
    """The call took too long and was cancelled; what it did until then is done."""


class ToolOutput(NamedTuple):
    """What a running tool said meanwhile."""

    text: str
    stream: Literal["stdout", "stderr", "log"] = "log"
    progress: float | None = None
    total: float | None = None


@dataclass(frozen=True)
class ToolResult:
    """What a tool answered; its failure is an answer too."""

    content: tuple[Mapping[str, Any], ...]
    is_error: bool = False
    structured: Mapping[str, Any] | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """All its text, for those who can show nothing else."""
        return "\n".join(part["text"] for part in self.content if part.get("type") == "text")


class Toolbox:
    """An open connection to a sandbox's server."""

    def __init__(self, session: ClientSession, bridge: Bridge, name: str) -> None:
        self._session = session
        self._bridge = bridge
        self._name = name
        self._changed = asyncio.Event()
        self.catalogue = Catalogue()

    @property
    def protocol_version(self) -> str:
        return self._session.protocol_version or ""

    @property
    def facts(self) -> Mapping[str, Any] | None:
        """The sandbox as its own server sees it, if the server is one that looks."""
        answer = self._session.discover_result or self._session.initialize_result
        facts = (answer.meta or {}).get(FACTS_KEY) if answer else None
        return facts if isinstance(facts, dict) else None

    def stderr_tail(self) -> str:
        return self._bridge.stderr_tail()

    async def refresh(self) -> Catalogue:
        """Ask for the tools again.

        Raises:
            ToolsLost: the connection ended.
            ToolsUnavailable: the server does not list them properly.
        """
        self._changed.clear()
        found = Catalogue()
        cursor: str | None = None
        try:
            async with asyncio.timeout(_LIST_SECONDS):
                for _ in range(_MOST_PAGES):
                    page = await self._list_page(cursor)
                    found = found.with_page(page.tools)
                    cursor = page.next_cursor
                    if not cursor or found.is_full:
                        break
        except TimeoutError as error:
            raise ToolsUnavailable(
                f"{self._name} did not list its tools within {_LIST_SECONDS} s."
            ) from error
        self.catalogue = found
        return found

    async def changes(self) -> AsyncGenerator[Catalogue, None]:
        """The catalogue again, each time the server says that it changed."""
        while True:
            await self._changed.wait()
            yield await self.refresh()

    async def run(self, name: str, arguments: Mapping[str, Any], timeout_seconds: float) -> ToolResult:
        """Call a tool and wait for its answer. Cancelling cancels the call at the server.

        Raises:
            ToolsLost: the connection ended; whether the tool ran is unknown.
            CallTimedOut: it took longer than `timeout_seconds`.
        """
        return await self._request(name, arguments, timeout_seconds, None)

    async def call(
        self, name: str, arguments: Mapping[str, Any], timeout_seconds: float
    ) -> AsyncGenerator[ToolOutput | ToolResult, None]:
        """Like `run`, with what the tool says meanwhile; the result comes last.

        Leaving the iteration early cancels the call.
        """
        outputs: asyncio.Queue[ToolOutput | None] = asyncio.Queue()
        request = asyncio.create_task(
            self._request(name, arguments, timeout_seconds, _ProgressInto(outputs)), name=f"call {name}"
        )
        request.add_done_callback(lambda _: outputs.put_nowait(None))
        try:
            while (output := await outputs.get()) is not None:
                yield output
            yield await request
        finally:
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)

    async def _request(
        self,
        name: str,
        arguments: Mapping[str, Any],
        timeout_seconds: float,
        progress: "_ProgressInto | None",
    ) -> ToolResult:
        request = types.CallToolRequest(
            params=types.CallToolRequestParams(name=name, arguments=dict(arguments))
        )
        try:
            # Not `call_tool`: it would check the answer against a schema that the server wrote.
            async with asyncio.timeout(timeout_seconds + _GRACE_SECONDS):
                answer = await self._session.send_request(
                    request, types.CallToolResult, timeout_seconds, progress_callback=progress
                )
        except TimeoutError as error:
            raise _timed_out(name, timeout_seconds) from error
        except MCPError as error:
            return self._failure(name, error, timeout_seconds)
        except ValidationError:
            return _error("The server's answer is not a tool result.")
        return ToolResult(
            content=tuple(part.model_dump(by_alias=True, exclude_none=True) for part in answer.content),
            is_error=bool(answer.is_error),
            structured=answer.structured_content,
            meta=answer.meta or {},
        )

    def _failure(self, name: str, error: MCPError, timeout_seconds: float) -> ToolResult:
        if self._bridge.ending:
            raise self.lost() from error
        if error.code == types.REQUEST_TIMEOUT:
            raise _timed_out(name, timeout_seconds) from error
        return _error(f"The server refused the call ({error.code}): {error.message}")

    async def _list_page(self, cursor: str | None) -> types.ListToolsResult:
        request = types.ListToolsRequest(params=types.PaginatedRequestParams(cursor=cursor))
        try:
            return await self._session.send_request(request, types.ListToolsResult)
        except MCPError as error:
            if self._bridge.ending:
                raise self.lost() from error
            raise ToolsUnavailable(f"{self._name} does not list its tools: {error.message}") from error
        except ValidationError as error:
            raise ToolsUnavailable(f"{self._name} lists its tools in a way MCP does not know.") from error

    def lost(self) -> ToolsLost:
        tail = self._bridge.stderr_tail().strip()
        said = f" Its last words: {tail[-500:]}" if tail else ""
        return ToolsLost(f"The connection to {self._name} ended: {self._bridge.ending}{said}")

    def _note_change(self) -> None:
        self._changed.set()


@asynccontextmanager
async def open_toolbox(
    sandbox: Sandbox,
    *,
    era: Era = "auto",
    start_seconds: float = 30,
    limits: BridgeLimits = BridgeLimits(),
) -> AsyncIterator[Toolbox]:
    """Attach to a sandbox, greet its server and list its tools.

    Raises:
        SandboxGone: it stopped before it could be attached.
        ToolsUnavailable: the server did not come up within `start_seconds`, or speaks no MCP.
    """
    async with sandbox.attach() as streams:
        bridge = Bridge(streams, limits)
        if not streams.is_fresh:
            await bridge.clear_line()
        dispatcher = _Dispatcher(bridge)

        async def on_message(message: IncomingMessage) -> None:
            if isinstance(message, types.ToolListChangedNotification):
                toolbox._note_change()

        session = ClientSession(dispatcher=dispatcher, client_info=_CLIENT, message_handler=on_message)
        toolbox = Toolbox(session, bridge, sandbox.name)
        failure: Exception | None = None
        async with session:
            try:
                await _start(toolbox, session, era, start_seconds)
                async with _watching(session, toolbox):
                    yield toolbox
            except Exception as error:
                # Carried past the SDK's task group, which would wrap it in a group of one.
                failure = error
        if failure is not None:
            raise failure


async def _start(toolbox: Toolbox, session: ClientSession, era: Era, start_seconds: float) -> None:
    try:
        async with asyncio.timeout(start_seconds):
            await _greet(session, era)
            await toolbox.refresh()
    except TimeoutError as error:
        raise ToolsUnavailable(
            f"The server in {toolbox._name} did not answer within {start_seconds:g} s."
        ) from error
    except (MCPError, ValidationError, RuntimeError) as error:
        if toolbox._bridge.ending:
            raise toolbox.lost() from error
        raise ToolsUnavailable(f"The server in {toolbox._name} speaks no MCP we know: {error}") from error


async def _greet(session: ClientSession, era: Era) -> None:
    """Find out the era: what does not answer `server/discover` gets a handshake."""
    if era == "auto":
        try:
            await session.discover()
        except MCPError as error:
            if error.code == types.CONNECTION_CLOSED:
                raise
        except (ValidationError, RuntimeError):
            pass
        else:
            return
    await session.initialize()


@asynccontextmanager
async def _watching(session: ClientSession, toolbox: Toolbox) -> AsyncIterator[None]:
    watching = asyncio.create_task(_watch(session, toolbox), name=f"tool list of {toolbox._name}")
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def _watch(session: ClientSession, toolbox: Toolbox) -> None:
    """Servers without a handshake tell of changes only to those who listen."""
    capabilities = session.server_capabilities
    if not (capabilities and capabilities.tools and capabilities.tools.list_changed):
        return
    try:
        async with listen(session, tools_list_changed=True) as subscription:
            async for _ in subscription:
                toolbox._note_change()
    except ListenNotSupportedError:
        return  # told by a notification instead
    except (MCPError, SubscriptionLost, TimeoutError) as error:
        logger.info("Changes of the tool list are not told any more: %s", error)


class _Dispatcher(Dispatcher[TransportContext]):
    """The SDK's dispatcher with request ids that no earlier or later connection uses.

    A container outlives our connection to it. With ids that start at 1 each time,
    a late answer to a dead client would be taken for the answer to a new question.
    """

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self._inner = JSONRPCDispatcher[TransportContext](IncomingMessages(bridge), OutgoingMessages(bridge))
        self._epoch = secrets.token_hex(8)
        self._count = itertools.count(1)

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        options = CallOptions(**(opts or {}))
        request_id = options.setdefault("request_id", f"{self._epoch}-{next(self._count)}")
        progress = options.pop("on_progress", None)
        if isinstance(progress, _ProgressInto):
            # Not the SDK's way: it starts a task for each, which may come after the result.
            meta = {**((params or {}).get("_meta") or {}), "progressToken": request_id}
            params = {**(params or {}), "_meta": meta}
            self._bridge.expect(request_id, progress.take)
        else:
            self._bridge.expect(request_id, None)
        try:
            return await self._inner.send_raw_request(method, params, options)
        finally:
            self._bridge.forget(request_id)

    async def notify(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> None:
        await self._inner.notify(method, params, opts)

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        **options: Any,
    ) -> None:
        await self._inner.run(on_request, on_notify, on_notify_intercept, **options)


class _ProgressInto:
    """Puts the progress of one call into a queue, in the order of the wire."""

    def __init__(self, outputs: asyncio.Queue[ToolOutput | None]) -> None:
        self._outputs = outputs

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        """Only here because the SDK's type asks for it; `take` does the work."""

    def take(self, params: dict[str, Any]) -> None:
        if self._outputs.qsize() >= _MOST_WAITING_OUTPUTS:
            return  # whoever does not keep up misses some: the result has the end of it all
        meta = params.get("_meta")
        stream = meta.get(STREAM_KEY) if isinstance(meta, dict) else None
        text = params.get("message")
        self._outputs.put_nowait(
            ToolOutput(
                text=text if isinstance(text, str) else "",
                stream=stream if stream in ("stdout", "stderr") else "log",
                progress=_number(params.get("progress")),
                total=_number(params.get("total")),
            )
        )


def _timed_out(name: str, seconds: float) -> CallTimedOut:
    return CallTimedOut(f"{name} did not finish within {seconds:g} s.")


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _error(text: str) -> ToolResult:
    return ToolResult(content=({"type": "text", "text": text},), is_error=True)
