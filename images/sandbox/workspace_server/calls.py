"""One tool call in flight: what was asked, and the three ways it can end."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Json = dict[str, Any]


class ToolError(Exception):
    """The tool cannot do this; the message is a sentence for the model that asked."""


class Call:
    """A call is answered once, or cancelled and then never answered."""

    __slots__ = ("_finish", "_report", "arguments", "is_over", "name", "on_cancel")

    def __init__(
        self,
        name: str,
        arguments: Json,
        report: Callable[[Json, bool], bool] | None,
        finish: Callable[[Json], None],
    ) -> None:
        self.name = name
        self.arguments = arguments
        self.is_over = False
        self.on_cancel: Callable[[], None] | None = None
        self._report = report
        self._finish = finish

    @property
    def wants_progress(self) -> bool:
        return self._report is not None

    def progress(self, value: int, message: str, meta: Json, *, is_last: bool = False) -> bool:
        """Tell the caller how far it is. Returns False when that could not be told now; try again later.

        The last words are told even to a caller who is slow to read.
        """
        if self._report is None or self.is_over:
            return True
        return self._report({"progress": value, "message": message, "_meta": meta}, is_last)

    def answer(self, content: list[Json], *, is_error: bool = False, structured: Json | None = None) -> None:
        if not self.is_over:
            self.is_over = True
            result: Json = {"content": content, "isError": is_error}
            if structured is not None:
                result["structuredContent"] = structured
            self._finish(result)

    def cancel(self) -> None:
        """End it without an answer and undo what runs for it."""
        self.is_over = True
        if self.on_cancel is not None:
            self.on_cancel()


def text(value: str) -> Json:
    """A block of text, as content of an answer."""
    return {"type": "text", "text": value}
