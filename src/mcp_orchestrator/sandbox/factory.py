"""Sandboxes of one shape: the configured image, limits and runtime on the chosen back end."""

from dataclasses import dataclass

from mcp_orchestrator.sandbox.backend import Sandbox, SandboxBackend, SandboxLimits, SandboxSpec


@dataclass(frozen=True)
class SandboxFactory:
    """Makes each new sandbox like the others; only the name differs."""

    backend: SandboxBackend
    instance: str
    image: str
    limits: SandboxLimits
    runtime: str = ""
    passed_over: str = ""
    """Why a stronger back end is not in use, when nobody asked for this one."""

    async def spec(self, name: str) -> SandboxSpec:
        """The description of a sandbox with this name.

        Raises:
            ImageMissing: the configured image is not there.
        """
        image = await self.backend.resolve(self.image)
        return SandboxSpec(name=name, image=image, limits=self.limits, runtime=self.runtime)

    async def create(self, spec: SandboxSpec) -> Sandbox:
        return await self.backend.create(spec)
