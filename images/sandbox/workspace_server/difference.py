"""The difference between two texts, in the unified format, in bounded time and length."""

from __future__ import annotations

from difflib import SequenceMatcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_CONTEXT = 3
_COMPARED_LINES = 1000  # comparing is quadratic
_SHOWN_CHARACTERS = 16_000


def difference(before: str, after: str, path: str) -> str:
    """Return the unified difference, or a sentence where it would be very long."""
    if before == after:
        return f"{path!r} is unchanged."
    old, new = before.split("\n"), after.split("\n")
    first = max(0, _common(old, new) - _CONTEXT)
    last = max(0, _common(old[first:][::-1], new[first:][::-1]) - _CONTEXT)
    old, new = old[first : len(old) - last], new[first : len(new) - last]
    if max(len(old), len(new)) > _COMPARED_LINES:
        return f"{path!r} is changed: {len(old)} lines from line {first + 1} became {len(new)}."
    text = "\n".join([f"--- {path}", f"+++ {path}", *_hunks(old, new, first)])
    if len(text) > _SHOWN_CHARACTERS:
        return f"{text[:_SHOWN_CHARACTERS]}\n[... {len(text) - _SHOWN_CHARACTERS} characters left out ...]"
    return text


def _common(old: list[str], new: list[str]) -> int:
    """Return how many lines at the start are the same."""
    most = min(len(old), len(new))
    return next((number for number in range(most) if old[number] != new[number]), most)


def _hunks(old: list[str], new: list[str], first: int) -> Iterator[str]:
    for group in SequenceMatcher(None, old, new).get_grouped_opcodes(_CONTEXT):
        old_start, old_end, new_start, new_end = group[0][1], group[-1][2], group[0][3], group[-1][4]
        old_range = f"{first + old_start + 1},{old_end - old_start}"
        yield f"@@ -{old_range} +{first + new_start + 1},{new_end - new_start} @@"
        for kind, old_from, old_to, new_from, new_to in group:
            if kind == "equal":
                yield from (f" {line}" for line in old[old_from:old_to])
            else:
                yield from (f"-{line}" for line in old[old_from:old_to])
                yield from (f"+{line}" for line in new[new_from:new_to])
