"""Making and finding the containers of one instance on one engine."""

import asyncio
import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self
from weakref import WeakValueDictionary

from aiodocker.containers import DockerContainer

from mcp_orchestrator.sandbox import names
from mcp_orchestrator.sandbox.backend import (
    BackendUnavailable,
    ImageMissing,
    SandboxConflict,
    SandboxError,
    SandboxFailed,
    SandboxGone,
    SandboxSpec,
)
from mcp_orchestrator.sandbox.cleanup import finish
from mcp_orchestrator.sandbox.docker import engine as engines
from mcp_orchestrator.sandbox.docker.description import container_config
from mcp_orchestrator.sandbox.docker.requests import POLL_SECONDS, engine_errors, patience
from mcp_orchestrator.sandbox.docker.sandbox import DockerSandbox, Engine

logger = logging.getLogger(__name__)


class DockerBackend:
    """Containers of one engine that belong to one instance of ours."""

    name = "docker"

    def __init__(self, engine: Engine, instance: str) -> None:
        self._engine = engine
        self._docker = engine.docker
        self._instance = instance
        # One object for one container: its streams have one holder, whoever asked for it and how.
        self._known: WeakValueDictionary[str, DockerSandbox] = WeakValueDictionary()

    @classmethod
    async def connect(cls, instance: str, environment: Mapping[str, str], data_dir: Path) -> Self:
        """Find an engine and talk to it.

        Raises:
            BackendUnavailable: no engine answers.
        """
        docker, endpoint = await engines.connect(environment)
        try:
            async with engine_errors("its version"):
                traits = await engines.traits(docker, data_dir)
        except SandboxError as error:
            await docker.close()
            raise BackendUnavailable(str(error)) from error
        return cls(Engine(docker, endpoint, traits), instance)

    async def close(self) -> None:
        await self._docker.close()

    async def resolve(self, image: str) -> str:
        """See `SandboxBackend.resolve`: the image's id, which nobody can move."""
        try:
            async with engine_errors(f"image {image}"):
                found = await self._docker.images.inspect(image)
        except SandboxGone:
            step = (
                "Build it with `make image`."
                if image == "mcp-server:latest"
                else "Pull it, or set SANDBOX_IMAGE."
            )
            raise ImageMissing(f"The image {image} is not on this engine. {step}") from None
        if volumes := (found.get("Config") or {}).get("Volumes"):
            # The engine would give each a writable place on the host's disk, without any limit.
            raise ImageMissing(
                f"The image {image} declares volumes ({', '.join(volumes)}), which no limit would hold. "
                "Use an image without VOLUME."
            )
        return str(found["Id"])

    async def create(self, spec: SandboxSpec) -> DockerSandbox:
        """See `SandboxBackend.create`."""
        async with patience(f"{spec.name} to be free or ready"):
            while True:
                try:
                    return await self._create_new(spec)
                except SandboxConflict:
                    if found := await self._adopt(spec):
                        return found
                await asyncio.sleep(POLL_SECONDS)

    async def find_all(self) -> list[DockerSandbox]:
        """See `SandboxBackend.find_all`."""
        filters = json.dumps({"label": [f"{names.INSTANCE_LABEL}={self._instance}"]})
        async with engine_errors("the list of sandboxes"):
            containers = await self._docker.containers.list(all="1", filters=filters)
        return [
            self._sandbox(container, container["Names"][0].removeprefix("/"), container["Labels"])
            for container in containers
        ]

    async def _create_new(self, spec: SandboxSpec) -> DockerSandbox:
        making = asyncio.ensure_future(self._make(spec))
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            # The engine goes on with what it was asked for: let it, then take it back.
            await finish(_take_back(making))
            raise

    async def _make(self, spec: SandboxSpec) -> DockerSandbox:
        labels = names.labels(self._instance, spec)
        config = container_config(spec, labels, self._engine.traits)
        try:
            async with engine_errors(spec.name):
                container = await self._docker.containers.create(config, name=spec.name)
        except SandboxGone as error:
            raise ImageMissing(f"The image {spec.image} is gone from the engine.") from error
        except SandboxFailed as error:
            # The engine may have made it although its answer never came.
            await self._discard_attempt(spec.name, labels[names.ATTEMPT_LABEL])
            if spec.runtime and "untime" in str(error):
                raise SandboxFailed(
                    f"{error}. SANDBOX_RUNTIME={spec.runtime} must be known to it."
                ) from error
            raise
        sandbox = self._sandbox(container, spec.name, labels, spec)
        try:
            await sandbox.start_attached()
        except SandboxError:
            await _discard(sandbox)
            raise
        return sandbox

    async def _adopt(self, spec: SandboxSpec) -> DockerSandbox | None:
        """The container that has the name, if it is the one asked for; None to try again."""
        try:
            async with engine_errors(spec.name):
                container = await self._docker.containers.get(spec.name)
        except SandboxGone:
            return None  # the name is taken before there is a container, and free only after it
        labels = container["Config"]["Labels"] or {}
        if labels.get(names.INSTANCE_LABEL) != self._instance:
            raise SandboxConflict(f"{spec.name} belongs to something else and was left alone.")
        status = container["State"]["Status"]
        if status == "removing":
            return None
        sandbox = self._sandbox(container, spec.name, labels, spec)
        if status in ("exited", "dead"):
            await sandbox.remove()
            return None
        if labels.get(names.SPEC_LABEL) != spec.fingerprint:
            raise SandboxConflict(f"{spec.name} runs with another image or other limits; remove it first.")
        if status == "created":
            # Its maker is about to start it, or died before it could. Starting twice does nothing.
            await sandbox.start()
        logger.info("Adopted sandbox %s (%s)", spec.name, status)
        return sandbox

    async def _discard_attempt(self, name: str, attempt: str) -> None:
        """Remove what this attempt made under the name; never what another one made."""
        with suppress(SandboxError):
            async with engine_errors(name):
                container = await self._docker.containers.get(name)
            labels = container["Config"]["Labels"] or {}
            if labels.get(names.ATTEMPT_LABEL) == attempt:
                await self._sandbox(container, name, labels).remove()

    def _sandbox(
        self,
        container: DockerContainer,
        name: str,
        labels: Mapping[str, str],
        spec: SandboxSpec | None = None,
    ) -> DockerSandbox:
        sandbox = self._known.get(container.id)
        if sandbox is None:
            sandbox = DockerSandbox(self._engine, container, name, labels)
            self._known[container.id] = sandbox
        sandbox.spec = spec or sandbox.spec
        return sandbox


async def _take_back(making: asyncio.Future[DockerSandbox]) -> None:
    with suppress(SandboxError):  # then there is nothing to take back
        await _discard(await making)


async def _discard(sandbox: DockerSandbox) -> None:
    try:
        await sandbox.remove()
    except SandboxError as error:
        logger.warning("Clean-up failed: %s", error)
