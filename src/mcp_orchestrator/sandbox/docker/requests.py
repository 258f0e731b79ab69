"""Talking to an engine: a limit on every wait, and its failures in our words."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from aiodocker.exceptions import DockerError
from aiohttp import ClientError

from mcp_orchestrator.sandbox.backend import SandboxConflict, SandboxFailed, SandboxGone

# An engine under load takes seconds to start a container; one that takes this long is stuck.
ENGINE_SECONDS: Final = 30
# How often we ask for what the engine does not announce.
POLL_SECONDS: Final = 0.02
_MESSAGE_CHARACTERS: Final = 300


class EngineRefused(SandboxFailed):
    """The engine answered, and the answer was no."""


@asynccontextmanager
async def engine_errors(subject: str) -> AsyncIterator[None]:
    """Put a limit on an engine call and turn what goes wrong into our words."""
    try:
        async with asyncio.timeout(ENGINE_SECONDS):
            yield
    except DockerError as error:
        raise _in_our_words(error, subject) from error
    except TimeoutError as error:
        raise SandboxFailed(f"The engine did not answer for {subject} within {ENGINE_SECONDS} s.") from error
    except (ClientError, OSError) as error:
        raise SandboxFailed(f"The engine cannot be reached for {subject}: {error}") from error


@asynccontextmanager
async def patience(what: str) -> AsyncIterator[None]:
    """Put a limit on waiting for something that somebody else is doing."""
    try:
        async with asyncio.timeout(ENGINE_SECONDS):
            yield
    except TimeoutError as error:
        raise SandboxFailed(f"Waited {ENGINE_SECONDS} s in vain for {what}.") from error


def _in_our_words(error: DockerError, subject: str) -> SandboxGone | SandboxConflict | EngineRefused:
    said = error.message[:_MESSAGE_CHARACTERS]
    match error.status:
        case 404:
            return SandboxGone(f"The engine does not know {subject}.")
        case 409:
            return SandboxConflict(f"The engine refuses for {subject}: {said}")
        case 500 if "already in use" in said:  # Podman's word for the same
            return SandboxConflict(f"The engine refuses for {subject}: {said}")
        case status:
            return EngineRefused(f"The engine answered {status} for {subject}: {said}")
