"""Waiting for what has no event of its own, always with a bound."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")


def wait_until(is_so: Callable[[], bool], seconds: float = 5) -> None:
    """Look again and again until it is so.

    Raises:
        TimeoutError: it was not, in all that time.
    """
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"It was not so within {seconds} s.")
        time.sleep(0.02)


def outcome_of(work: Coroutine[Any, Any, Result]) -> Result:
    """Run something asynchronous to its end, in a loop of its own: the caller may be inside another."""
    with ThreadPoolExecutor(1) as apart:
        return apart.submit(asyncio.run, work).result()
