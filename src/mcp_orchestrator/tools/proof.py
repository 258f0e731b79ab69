"""A toolbox only of a sandbox that was examined and holds what is promised."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from mcp_orchestrator.sandbox import probe
from mcp_orchestrator.sandbox.backend import Sandbox, SandboxSpec
from mcp_orchestrator.sandbox.properties import Property
from mcp_orchestrator.tools.toolbox import Toolbox, open_toolbox


class ProvenToolbox(NamedTuple):
    """The tools, and every property that was looked at."""

    toolbox: Toolbox
    properties: tuple[Property, ...]


@asynccontextmanager
async def open_proven_toolbox(sandbox: Sandbox, spec: SandboxSpec) -> AsyncIterator[ProvenToolbox]:
    """Connect to the workspace server of our own image, and examine the sandbox meanwhile.

    Raises:
        SandboxUnsound: a property does not hold; no tool was run.
        ToolsUnavailable, SandboxGone: see `open_toolbox`.
    """
    outside = asyncio.create_task(sandbox.examine(), name=f"examine {sandbox.name}")
    try:
        async with open_toolbox(sandbox) as toolbox:
            properties = (*probe.inside(toolbox.facts or {}, spec), *await outside)
            probe.require_sound(sandbox.name, properties)
            yield ProvenToolbox(toolbox, properties)
    finally:
        outside.cancel()
        await asyncio.gather(outside, return_exceptions=True)
