"""The SDK's dispatcher with two things of our own: request ids nobody else uses, and progress in order."""

import asyncio
import itertools
import secrets
from collections.abc import Mapping
from typing import Any, Final

from mcp.shared.dispatcher import CallOptions, Dispatcher, OnNotify, OnNotifyIntercept, OnRequest
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.transport_context import TransportContext

from mcp_orchestrator.tools.bridge import Bridge, IncomingMessages, OutgoingMessages
from mcp_orchestrator.tools.results import ToolOutput

STREAM_KEY: Final = "io.mcp-orchestrator/stream"
_MOST_WAITING_OUTPUTS: Final = 1_000


class UniqueDispatcher(Dispatcher[TransportContext]):
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
        if isinstance(progress, ProgressQueue):
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


class ProgressQueue:
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


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
