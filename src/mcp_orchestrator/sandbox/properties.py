"""The promises of a sandbox, one by one: which of them hold."""

from typing import NamedTuple


class Property(NamedTuple):
    """One promise about a sandbox and what was seen of it.

    Without an essential one no tool runs; another that does not hold is told and lived with.
    The next step is for a person who wants it to hold.
    """

    name: str
    held: bool
    seen: str
    is_essential: bool = True
    next_step: str = ""
