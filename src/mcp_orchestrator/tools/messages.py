"""From one line to one JSON-RPC message, distrusting everything about it.

The other side may be hostile: what is odd is refused here, before the SDK's
models or anybody's `dict` see it, and refusing is always quick.
"""

import json
import re
from typing import Any, Final

from mcp_types import (
    INVALID_REQUEST,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestId,
)
from pydantic import ValidationError

from mcp_orchestrator.errors import OrchestratorError
from mcp_orchestrator.tools.lines import OversizedLine

# A small line is quick to parse whatever it holds; in a large one the values are counted first.
_SMALL_BYTES: Final = 256 * 1024
_MOST_VALUES: Final = 100_000
_MOST_CONTENT: Final = 1_000
_ENDS: Final = 4_096

_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_ID: Final = re.compile(rb'"id"\s*:\s*("(?:[^"\\]|\\.){1,200}"|-?\d{1,18})')


class NotAMessage(OrchestratorError):
    """A line that is no JSON-RPC message."""


class TooManyValues(NotAMessage):
    """A line that may be a message, but would take too long to build."""


def parse_message(line: bytes | bytearray) -> JSONRPCMessage:
    """The message in a line; an answer with a fault becomes an error answer to the same request.

    Raises:
        NotAMessage: nothing can be made of it.
    """
    try:
        message = _parse_json(line)
    except TooManyValues:
        ends = OversizedLine(len(line), bytes(line[:_ENDS]), bytes(line[-_ENDS:]))
        if answer := unread_answer(ends, f"more than {_MOST_VALUES} values"):
            return answer
        raise
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        raise NotAMessage("not a JSON-RPC object")
    try:
        if "method" in message:
            return _call(message)
        return _answer(message)
    except ValidationError as error:
        raise NotAMessage("not a JSON-RPC message") from error


def unread_answer(line: OversizedLine, excess: str) -> JSONRPCError | None:
    """The error that stands for an answer too large to read, if it shows whose answer it is."""
    # Servers put the id first or last; what a result quotes in between is not looked at.
    ids = _ID.findall(line.head)[:1] or _ID.findall(line.tail)[-1:]
    if not ids:
        return None
    try:
        request_id = json.loads(ids[0])
    except ValueError:
        return None
    return _refusal(request_id, f"The answer has {line.length} bytes and {excess}: it is not read.")


def _parse_json(line: bytes | bytearray) -> Any:
    if len(line) > _SMALL_BYTES and _has_too_many_values(line):
        raise TooManyValues("too many values")
    try:
        parsed = json.loads(
            line.decode(), parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_no_twice
        )
        if _SURROGATE.search(line):
            parsed = _without_lone_surrogates(parsed)
    except (ValueError, RecursionError) as error:
        raise NotAMessage("not JSON") from error
    return parsed


def _has_too_many_values(line: bytes | bytearray) -> bool:
    """Count values by what stands between strings, in a few plain passes over the line."""
    without_escapes = line.replace(b"\\\\", b"").replace(b'\\"', b"")
    if without_escapes.count(b'"') > 4 * _MOST_VALUES:
        return True
    between_strings = b"".join(without_escapes.split(b'"')[::2])
    return sum(map(between_strings.count, (b",", b"[", b"{"))) > _MOST_VALUES


def _call(message: dict[str, Any]) -> JSONRPCRequest | JSONRPCNotification:
    if "id" in message:
        return JSONRPCRequest.model_validate(message)
    return JSONRPCNotification.model_validate(message)


def _answer(message: dict[str, Any]) -> JSONRPCResponse | JSONRPCError:
    request_id = message.get("id")
    if isinstance(request_id, bool) or not isinstance(request_id, str | int):
        raise NotAMessage("an answer without an id")
    has_result, has_error = "result" in message, "error" in message
    if has_result == has_error:
        return _refusal(request_id, "The server's answer has both a result and an error, or neither.")
    try:
        if has_error:
            return JSONRPCError.model_validate(message)
        if len(_content(message)) > _MOST_CONTENT:
            return _refusal(request_id, f"The server's answer has more than {_MOST_CONTENT} parts.")
        return JSONRPCResponse.model_validate(message)
    except ValidationError:
        return _refusal(request_id, "The server's answer is malformed.")


def _content(message: dict[str, Any]) -> list[Any]:
    result = message["result"]
    content = result.get("content") if isinstance(result, dict) else None
    return content if isinstance(content, list) else []


def _refusal(request_id: RequestId, text: str) -> JSONRPCError:
    return JSONRPCError(jsonrpc="2.0", id=request_id, error=ErrorData(code=INVALID_REQUEST, message=text))


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(text)
    return number


def _no_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a key stands twice")
    return members


def _without_lone_surrogates(value: Any) -> Any:
    """Half a character in an escape is legal JSON but no text: nothing could store or show it."""
    text = json.dumps(value, ensure_ascii=False)
    return json.loads(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
