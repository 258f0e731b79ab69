"""Sandboxes for tests, on whichever back end, gone when the test is."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mcp_orchestrator.sandbox import names
from mcp_orchestrator.sandbox.backend import (
    ByteStreams,
    Sandbox,
    SandboxBackend,
    SandboxLimits,
    SandboxSpec,
)
from mcp_orchestrator.sandbox.bubblewrap.backend import BubblewrapBackend
from mcp_orchestrator.sandbox.docker.backend import DockerBackend
from mcp_orchestrator.tools.proof import open_proven_toolbox
from mcp_orchestrator.tools.toolbox import Toolbox, open_toolbox

Kind = Literal["docker", "runsc", "bubblewrap"]


@dataclass
class Workshop:
    """Makes sandboxes of one kind and removes what is left of them."""

    kind: Kind
    backend: SandboxBackend
    instance: str
    image: str
    made: list[Sandbox] = field(default_factory=list)

    def spec(self, *command: str, name: str = "", limits: SandboxLimits = SandboxLimits()) -> SandboxSpec:
        return SandboxSpec(
            name=name or names.pool_name(self.instance),
            image=self.image,
            command=command,
            limits=limits,
            runtime="runsc" if self.kind == "runsc" else "",
        )

    async def make(self, *command: str, name: str = "", limits: SandboxLimits = SandboxLimits()) -> Sandbox:
        """A sandbox that runs `command`, or the workspace server."""
        return await self.create(self.spec(*command, name=name, limits=limits))

    async def create(self, spec: SandboxSpec) -> Sandbox:
        sandbox = await self.backend.create(spec)
        self.made.append(sandbox)
        return sandbox

    async def python(self, program: str) -> Sandbox:
        return await self.make("python3", "-I", "-S", "-c", program)

    @asynccontextmanager
    async def toolbox(self, limits: SandboxLimits = SandboxLimits()) -> AsyncIterator[Toolbox]:
        """The tools of a fresh, examined sandbox."""
        spec = self.spec(limits=limits)
        sandbox = await self.create(spec)
        async with open_proven_toolbox(sandbox, spec) as (toolbox, _):
            yield toolbox

    @asynccontextmanager
    async def foreign_toolbox(self, program: str, **options: Any) -> AsyncIterator[tuple[Toolbox, Sandbox]]:
        """The tools of a server that is not ours."""
        sandbox = await self.python(program)
        async with open_toolbox(sandbox, **options) as toolbox:
            yield toolbox, sandbox


@asynccontextmanager
async def open_workshop(
    kind: Kind, instance: str, engine: str, image: str, folder: Path
) -> AsyncIterator[Workshop]:
    backend: SandboxBackend
    if kind == "bubblewrap":
        backend = await BubblewrapBackend.connect(instance, folder)
    else:
        backend = await DockerBackend.connect(instance, {"DOCKER_HOST": engine}, folder)
    workshop = Workshop(kind, backend, instance, await backend.resolve(image))
    try:
        yield workshop
    finally:
        await asyncio.gather(*(sandbox.remove() for sandbox in workshop.made))
        await backend.close()


async def read_until(streams: ByteStreams, enough: Callable[[bytearray], bool], seconds: float = 5) -> bytes:
    """What stdout says until it is enough."""
    said = bytearray()
    async with asyncio.timeout(seconds):
        while not enough(said):
            output = await streams.read()
            assert output is not None, f"the sandbox ended after {bytes(said[-1000:])!r}"
            if output.source == "stdout":
                said += output.data
    return bytes(said)


async def read_all(streams: ByteStreams, seconds: float = 10) -> tuple[bytes, bytes]:
    """Everything until the end: stdout and stderr."""
    said: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
    async with asyncio.timeout(seconds):
        while (output := await streams.read()) is not None:
            said[output.source].append(output.data)
    return b"".join(said["stdout"]), b"".join(said["stderr"])
