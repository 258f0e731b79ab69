"""`sandbox list` and `sandbox remove`: what an engine still has of ours, after a kill for example."""

import asyncio

import typer

from mcp_orchestrator.cli.doctor import OpenSandboxes
from mcp_orchestrator.sandbox import names


async def show(open_sandboxes: OpenSandboxes) -> int:
    async with open_sandboxes() as sandboxes:
        for sandbox in await sandboxes.backend.find_all():
            state = await sandbox.state()
            typer.echo(f"{sandbox.name}  {state.status}  {sandbox.labels.get(names.CREATED_LABEL, '')}")
    return 0


async def remove(open_sandboxes: OpenSandboxes) -> int:
    async with open_sandboxes() as sandboxes:
        found = await sandboxes.backend.find_all()
        await asyncio.gather(*(sandbox.remove() for sandbox in found))
        for sandbox in found:
            typer.echo(f"{sandbox.name} removed")
    return 0
