"""The Model Context Protocol, both eras on one stream in any order.

A request that carries a protocol version in `_meta` is of the 2026-07-28 era and gets an answer of that era;
any other is of the handshake era. No state decides it, so a client that comes back after its own restart is
understood. Running a tool is left to `tools`.
"""

from __future__ import annotations

import sys

from calls import Call
from catalogue import SCHEMAS, TOOLS
from jsontext import loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from tools import Toolbox
    from wire import Outbox

    Json = dict[str, Any]

HANDSHAKE_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MODERN_VERSIONS = ("2026-07-28",)
ALL_VERSIONS = [*MODERN_VERSIONS, *reversed(HANDSHAKE_VERSIONS)]

SERVER = {"name": "workspace", "title": "Workspace", "version": "1.0.0"}
INSTRUCTIONS = (
    "Files and commands in an isolated sandbox without a network. All paths are inside /workspace, which is "
    "writable; the rest of the system is read-only, except /tmp. Processes end with the call that began them."
)

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
UNSUPPORTED_PROTOCOL_VERSION = -32022

_VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
_CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"
_SERVER_KEY = "io.modelcontextprotocol/serverInfo"
_FACTS_KEY = "io.mcp-orchestrator/sandbox"
_USAGE_KEY = "io.mcp-orchestrator/workspace"

_TOOLS_ARE_FRESH_MS = 3_600_000  # the tools are part of the image: they cannot change while it runs


class RequestError(Exception):
    """The request cannot be served, as JSON-RPC says it."""

    def __init__(self, code: int, message: str, data: Json | None = None) -> None:
        super().__init__(message)
        self.error: Json = {"code": code, "message": message}
        if data is not None:
            self.error["data"] = data


class Protocol:
    """Understands one line at a time and answers on the outbox."""

    def __init__(self, outbox: Outbox, toolbox: Toolbox, facts: Callable[[], Json]) -> None:
        self._outbox = outbox
        self._toolbox = toolbox
        self._facts = facts
        self._calls: dict[int | str, Call] = {}
        self._modern_methods = {
            "server/discover": self._discover,
            "tools/list": self._list_modern_tools,
            "tools/call": self._call_tool,
        }
        self._handshake_methods = {
            "initialize": self._initialize,
            "ping": lambda _id, _params: {},
            "tools/list": self._list_tools,
            "tools/call": self._call_tool,
        }

    def receive(self, line: bytes, is_whole: bool) -> None:
        """Serve one line: a request is answered now or by its call later, a notification never."""
        if not line.strip():
            return
        request_id = None
        try:
            message = _parse(line) if is_whole else _refuse_long_line(line)
            request_id = _id_of(message)
            self._serve(message, request_id)
        except _LineTooLongError as refusal:
            self._answer_error(refusal.request_id, refusal)
        except RequestError as refusal:
            self._answer_error(request_id, refusal)
        except Exception:  # the outermost frame: one bad request must not end the server
            sys.excepthook(*sys.exc_info())
            self._answer_error(request_id, RequestError(INTERNAL_ERROR, "Internal error"))

    def _serve(self, message: Json, request_id: int | str | None) -> None:
        method = message.get("method")
        if not isinstance(method, str):
            if "result" in message or "error" in message:
                return  # an answer, and we asked nothing
            raise RequestError(INVALID_REQUEST, "method must be a string")
        params = message.get("params")
        if params is not None and not isinstance(params, dict):
            raise RequestError(INVALID_PARAMS, "params must be an object")
        if "id" not in message:
            self._notice(method, params or {})
            return
        if request_id is None:
            raise RequestError(INVALID_REQUEST, "id must be a string or an integer")
        result = self._result(request_id, method, params or {})
        if result is not None:
            self._outbox.send({"jsonrpc": "2.0", "id": request_id, "result": result})

    def _result(self, request_id: int | str, method: str, params: Json) -> Json | None:
        """Return the result, or None when a call will answer later."""
        is_modern = method != "initialize" and _is_modern(method, params)
        if is_modern:
            _check_envelope(params)
        serve = (self._modern_methods if is_modern else self._handshake_methods).get(method)
        if serve is None:
            raise RequestError(METHOD_NOT_FOUND, f"Method not found: {method[:100]}")
        result = serve(request_id, params)
        return _modern(result) if is_modern and result is not None else result

    def _notice(self, method: str, params: Json) -> None:
        if method == "notifications/cancelled":
            request_id = params.get("requestId")
            call = self._calls.pop(request_id, None) if isinstance(request_id, (int, str)) else None
            if call is not None:
                call.cancel()

    def _initialize(self, _id: int | str, params: Json) -> Json:
        wanted = params.get("protocolVersion")
        if not isinstance(wanted, str):
            raise RequestError(INVALID_PARAMS, "protocolVersion must be a string")
        return {
            "protocolVersion": wanted if wanted in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[-1],
            "capabilities": {"tools": {"listChanged": False}},
            "serverInfo": SERVER,
            "instructions": INSTRUCTIONS,
            "_meta": {_FACTS_KEY: self._facts()},
        }

    def _discover(self, _id: int | str, _params: Json) -> Json:
        return {
            "supportedVersions": ALL_VERSIONS,
            "capabilities": {"tools": {}},
            "instructions": INSTRUCTIONS,
            "ttlMs": 0,
            "cacheScope": "private",
            "_meta": {_FACTS_KEY: self._facts()},
        }

    def _list_tools(self, _id: int | str, params: Json) -> Json:
        if params.get("cursor") is not None:
            raise RequestError(INVALID_PARAMS, "cursor is unknown: there is one page")
        return {"tools": TOOLS}

    def _list_modern_tools(self, request_id: int | str, params: Json) -> Json:
        return {**self._list_tools(request_id, params), "ttlMs": _TOOLS_ARE_FRESH_MS, "cacheScope": "public"}

    def _call_tool(self, request_id: int | str, params: Json) -> None:
        name, arguments = params.get("name"), params.get("arguments")
        if not isinstance(name, str) or name not in SCHEMAS:
            raise RequestError(INVALID_PARAMS, f"Unknown tool: {str(name)[:100]}")
        if arguments is not None and not isinstance(arguments, dict):
            raise RequestError(INVALID_PARAMS, "arguments must be an object")
        forgotten = self._calls.pop(request_id, None)
        if forgotten is not None:
            # The same id again: a new client counts from one. Only its own call may answer to that id.
            forgotten.cancel()
        is_modern = _is_modern("tools/call", params)
        call = Call(name, arguments or {}, self._progress_of(params), self._finish(request_id, is_modern))
        self._calls[request_id] = call
        self._toolbox.start(call)

    def _finish(self, request_id: int | str, is_modern: bool) -> Callable[[Json], None]:
        def finish(result: Json) -> None:
            self._calls.pop(request_id, None)
            result["_meta"] = {_USAGE_KEY: self._toolbox.usage()}
            answer = _modern(result) if is_modern else result
            self._outbox.send({"jsonrpc": "2.0", "id": request_id, "result": answer})

        return finish

    def _progress_of(self, params: Json) -> Callable[[Json, bool], bool] | None:
        meta = params.get("_meta")
        token = meta.get("progressToken") if isinstance(meta, dict) else None
        if not isinstance(token, (int, str)):
            return None

        def report(progress: Json, is_last: bool) -> bool:
            if self._outbox.is_full or (self._outbox.is_behind and not is_last):
                return False
            params = {"progressToken": token, **progress}
            self._outbox.send({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
            return True

        return report

    def _answer_error(self, request_id: int | str | None, refusal: RequestError) -> None:
        self._outbox.send({"jsonrpc": "2.0", "id": request_id, "error": refusal.error})


class _LineTooLongError(RequestError):
    """The request is longer than we keep; its id was seen in the first bytes, or was not."""

    def __init__(self, request_id: int | str | None) -> None:
        super().__init__(INVALID_REQUEST, "The request is longer than 16 MiB and was skipped")
        self.request_id = request_id


def _parse(line: bytes) -> Json:
    try:
        message = loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        raise RequestError(PARSE_ERROR, "Parse error") from None
    if not isinstance(message, dict):
        raise RequestError(INVALID_REQUEST, "A message must be one object; batches are not accepted")
    return message


def _refuse_long_line(head: bytes) -> Json:
    """Raise the error, with the id when it stands before the parameters: no other `id` stands there."""
    before_params = head.partition(b'"params"')[0]
    _, found, value = before_params.partition(b'"id"')
    try:
        request_id = loads(value.strip(b" :").partition(b",")[0].decode("ascii")) if found else None
    except ValueError:
        request_id = None
    raise _LineTooLongError(request_id if _is_id(request_id) else None)


def _id_of(message: Json) -> int | str | None:
    request_id = message.get("id")
    if message.get("jsonrpc") != "2.0":
        raise RequestError(INVALID_REQUEST, 'jsonrpc must be "2.0"')
    return request_id if _is_id(request_id) else None


def _is_id(value: object) -> bool:
    return isinstance(value, (int, str)) and not isinstance(value, bool)


def _is_modern(method: str, params: Json) -> bool:
    meta = params.get("_meta")
    return method == "server/discover" or (isinstance(meta, dict) and _VERSION_KEY in meta)


def _check_envelope(params: Json) -> None:
    meta = params.get("_meta")
    meta = meta if isinstance(meta, dict) else {}
    missing = [key for key in (_VERSION_KEY, _CAPABILITIES_KEY) if key not in meta]
    if missing:
        raise RequestError(INVALID_PARAMS, f"params._meta is missing {', '.join(missing)}")
    version = meta[_VERSION_KEY]
    if not isinstance(version, str):
        raise RequestError(INVALID_PARAMS, f"{_VERSION_KEY} must be a string")
    if version not in MODERN_VERSIONS:
        supported = {"supported": ALL_VERSIONS, "requested": version}
        raise RequestError(UNSUPPORTED_PROTOCOL_VERSION, "Unsupported protocol version", supported)


def _modern(result: Json) -> Json:
    return {"resultType": "complete", **result, "_meta": {**result.get("_meta", {}), _SERVER_KEY: SERVER}}
