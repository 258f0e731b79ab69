"""The promises of a sandbox, one by one: which of them hold."""

from typing import NamedTuple


class Property(NamedTuple):
    """One promise about a sandbox and what was seen of it."""

    name: str
    held: bool
    seen: str
