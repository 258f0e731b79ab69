"""Clean-up that ends, whatever happens to who asked for it."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def finish(work: asyncio.Future[Any] | Coroutine[Any, Any, Any]) -> None:
    """Wait for bounded clean-up to its end; a cancellation meanwhile is passed on afterwards."""
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = True
        except Exception:  # noqa: S110 - raised below, once it is known that nobody was cancelled
            pass
    if cancelled:
        raise asyncio.CancelledError
    task.result()
