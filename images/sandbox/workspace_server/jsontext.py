"""JSON to and from text, by the C code inside the standard library's `json`.

The `json` package itself loads `re` and `enum`, a quarter of this server's start. Its C part needs neither.
Where that private module has changed, the public package is used instead: slower to start, otherwise the
same.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def loads(text: str) -> Any:
    """Return the one JSON value in the text.

    Raises:
        ValueError: it is not JSON, holds NaN or Infinity, or a number with thousands of digits.
        RecursionError: it is nested too deeply.
    """
    stripped = text.strip(" \t\r\n")
    try:
        value, end = _scan(stripped, 0)
    except (StopIteration, SystemError):
        # Without the `json` package the C code has no exception to raise, and Python says SystemError.
        raise ValueError("this is not JSON") from None
    if end != len(stripped):
        raise ValueError("something follows the value")
    return value


def dumps(value: Any) -> bytes:
    """Return the value on one line of pure ASCII: no character can be cut in two or break the line."""
    return "".join(_encode(value, 0)).encode("ascii")


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


class _Context:
    """What the scanner asks its owner about."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = staticmethod(_refuse_constant)


def _codec() -> tuple[Callable[[str, int], tuple[Any, int]], Callable[[Any, int], Any]]:
    try:
        import _json

        encode = _json.make_encoder(
            None, _refuse_value, _json.encode_basestring_ascii, None, ":", ",", False, False, False
        )
        encode([1], 0)
        return _json.make_scanner(_Context()), encode  # type: ignore[arg-type]  # it only reads attributes
    except (ImportError, AttributeError, TypeError):
        import json

        encoder = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
        decoder = json.JSONDecoder(parse_constant=_refuse_constant)
        return decoder.raw_decode, lambda value, _: encoder.encode(value)


def _refuse_value(value: object) -> Any:
    raise TypeError(f"{type(value).__name__} has no JSON form")


_scan, _encode = _codec()
