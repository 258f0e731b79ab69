"""The tools of one sandbox: connect, list, call, close.

`open_toolbox` is entered and left by one task, the owner of the connection;
calls may come from any task meanwhile.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any, Final, Literal

import mcp_types as types
from mcp.client.session import ClientSession, IncomingMessage
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost, listen
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from mcp_orchestrator.sandbox.backend import Sandbox
from mcp_orchestrator.tools.bridge import Bridge, BridgeLimits
from mcp_orchestrator.tools.catalogue import Catalogue
from mcp_orchestrator.tools.dispatcher import ProgressQueue, UniqueDispatcher
from mcp_orchestrator.tools.results import (
    CallTimedOut,
    ToolOutput,
    ToolResult,
    ToolsLost,
    ToolsUnavailable,
)

logger = logging.getLogger(__name__)

Era = Literal["auto", "handshake"]

FACTS_KEY: Final = "io.mcp-orchestrator/sandbox"
_CLIENT: Final = types.Implementation(name="mcp-orchestrator", version=version("mcp-orchestrator"))
_MOST_PAGES: Final = 100
_LIST_SECONDS: Final = 60
# The SDK keeps the time of a call; this much later we stop waiting even for our own words to be read.
_GRACE_SECONDS: Final = 1


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
            self._request(name, arguments, timeout_seconds, ProgressQueue(outputs)), name=f"call {name}"
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
        progress: ProgressQueue | None,
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
            return ToolResult.failure("The server's answer is not a tool result.")
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
        return ToolResult.failure(f"The server refused the call ({error.code}): {error.message}")

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
        dispatcher = UniqueDispatcher(bridge)

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


def _timed_out(name: str, seconds: float) -> CallTimedOut:
    return CallTimedOut(f"{name} did not finish within {seconds:g} s.")
