"""The tools a server offers, made safe to show and to name."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import mcp_types as types

_NAME: Final = re.compile(r"[A-Za-z0-9_./-]{1,128}")
_MOST_TOOLS: Final = 500
_DESCRIPTION_CHARACTERS: Final = 8_192
_SCHEMA_BYTES: Final = 64 * 1024


@dataclass(frozen=True)
class Tool:
    """One tool as its server describes it. The words are claims, not facts."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    title: str = ""
    annotations: Mapping[str, Any] = field(default_factory=dict)

    @property
    def definition_hash(self) -> str:
        """Changes with anything a person or a model was shown of it."""
        shown = [self.name, self.title, self.description, self.input_schema, self.annotations]
        return hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()


class Catalogue(NamedTuple):
    """What can be called, and a sentence for each thing that was left out."""

    tools: tuple[Tool, ...] = ()
    refused: tuple[str, ...] = ()

    @property
    def is_full(self) -> bool:
        return len(self.tools) >= _MOST_TOOLS or len(self.refused) >= _MOST_TOOLS

    def with_page(self, listed: Iterable[types.Tool]) -> "Catalogue":
        """Add the tools whose names are plain and whose definitions are bounded."""
        # Names that differ in case only are the same to a hasty reader.
        tools = {tool.name.casefold(): tool for tool in self.tools}
        refused = list(self.refused)
        for tool in listed:
            key = tool.name.casefold()
            if problem := _problem(tool, is_known=key in tools, is_full=len(tools) >= _MOST_TOOLS):
                refused.append(problem)
            else:
                tools[key] = _tool(tool)
        return Catalogue(tuple(tools.values()), tuple(refused[:_MOST_TOOLS]))


def _problem(tool: types.Tool, *, is_known: bool, is_full: bool) -> str:
    name = ascii(tool.name[:128])
    if is_full:
        return f"{name} was left out: the server offers more than {_MOST_TOOLS} tools."
    if not _NAME.fullmatch(tool.name):
        return f"{name} was left out: its name is not plain letters, digits and _ . / -"
    if is_known:
        return f"{name} was left out: another tool has that name."
    if len(json.dumps(tool.input_schema)) > _SCHEMA_BYTES:
        return f"{name} was left out: its schema is larger than {_SCHEMA_BYTES} bytes."
    return ""


def _tool(tool: types.Tool) -> Tool:
    return Tool(
        name=tool.name,
        title=(tool.title or "")[:200],
        description=(tool.description or "")[:_DESCRIPTION_CHARACTERS],
        input_schema=tool.input_schema,
        annotations=tool.annotations.model_dump(by_alias=True, exclude_none=True) if tool.annotations else {},
    )
