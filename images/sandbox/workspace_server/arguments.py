"""Checks arguments against the schema of their tool: the part of JSON Schema that our own schemas use."""

from __future__ import annotations

from calls import ToolError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Json = dict[str, Any]


def check(arguments: Json, schema: Json) -> Json:
    """Return the arguments when the schema allows them.

    Raises:
        ToolError: it does not; the sentence names the argument and what is expected.
    """
    _check_object(arguments, schema, "")
    return arguments


def _check_value(value: Any, schema: Json, name: str) -> None:
    _CHECKS[schema["type"]](value, schema, name)
    if "enum" in schema and value not in schema["enum"]:
        raise ToolError(f"{name} must be one of {', '.join(map(repr, schema['enum']))}.")


def _check_object(value: Any, schema: Json, name: str) -> None:
    if not isinstance(value, dict):
        raise ToolError(f"{name} must be an object.")
    inside = f"{name}." if name else ""
    properties = schema.get("properties", {})
    for key in schema.get("required", ()):
        if key not in value:
            raise ToolError(f"The argument {inside}{key} is missing.")
    for key, item in value.items():
        item_schema = properties.get(key) or schema["additionalProperties"]
        if not item_schema:
            raise ToolError(f"There is no argument {inside}{key[:100]}. There are: {', '.join(properties)}.")
        _check_value(item, item_schema, f"{inside}{key[:100]}")


def _check_array(value: Any, schema: Json, name: str) -> None:
    if not isinstance(value, list) or not schema["minItems"] <= len(value) <= schema["maxItems"]:
        raise ToolError(f"{name} must be a list of {schema['minItems']} to {schema['maxItems']} items.")
    for number, item in enumerate(value):
        _check_value(item, schema["items"], f"{name}[{number}]")


def _check_string(value: Any, schema: Json, name: str) -> None:
    if not isinstance(value, str):
        raise ToolError(f"{name} must be a string.")
    if len(value) < schema.get("minLength", 0):
        raise ToolError(f"{name} must not be empty.")
    if len(value) > schema.get("maxLength", len(value)):
        raise ToolError(f"{name} has {len(value)} characters; at most {schema['maxLength']} are accepted.")


def _check_number(value: Any, schema: Json, name: str) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not schema["minimum"] <= value <= schema["maximum"]:
        raise ToolError(f"{name} must be a number from {schema['minimum']} to {schema['maximum']}.")


def _check_integer(value: Any, schema: Json, name: str) -> None:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or not schema["minimum"] <= value <= schema["maximum"]:
        raise ToolError(f"{name} must be a whole number from {schema['minimum']} to {schema['maximum']}.")


def _check_boolean(value: Any, _schema: Json, name: str) -> None:
    if not isinstance(value, bool):
        raise ToolError(f"{name} must be true or false.")


_CHECKS: dict[str, Callable[[Any, Json, str], None]] = {
    "object": _check_object,
    "array": _check_array,
    "string": _check_string,
    "number": _check_number,
    "integer": _check_integer,
    "boolean": _check_boolean,
}
