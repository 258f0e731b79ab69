"""What comes of calling a tool: its words, its answer, or why there is none."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from mcp_orchestrator.errors import OrchestratorError


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

    @classmethod
    def failure(cls, text: str) -> "ToolResult":
        """A refusal or a fault of the server, as the answer it amounts to."""
        return cls(content=({"type": "text", "text": text},), is_error=True)
