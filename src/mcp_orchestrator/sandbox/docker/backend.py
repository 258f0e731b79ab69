"""Sandboxes as hardened containers of a Docker-compatible engine."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

from aiodocker import Docker
from aiodocker.containers import DockerContainer
from aiodocker.exceptions import DockerError
from aiohttp import ClientError

from mcp_orchestrator.sandbox import archive, names
from mcp_orchestrator.sandbox.backend import (
    ArchiveFailed,
    BackendUnavailable,
    ImageMissing,
    SandboxBusy,
    SandboxConflict,
    SandboxError,
    SandboxFailed,
    SandboxGone,
    SandboxLimits,
    SandboxSpec,
    SandboxState,
    SandboxStats,
)
from mcp_orchestrator.sandbox.docker import engine as engines
from mcp_orchestrator.sandbox.docker.description import USER, EngineTraits, container_config, deviations
from mcp_orchestrator.sandbox.docker.stream import Endpoint, EngineStream, open_stream, opened_stream
from mcp_orchestrator.sandbox.properties import Property

logger = logging.getLogger(__name__)

# An engine under load takes seconds to start a container; one that takes this long is stuck.
_ENGINE_SECONDS: Final = 30
# How often we ask for what the engine does not announce.
_POLL_SECONDS: Final = 0.02
_STDERR_KEPT: Final = 2048
_MESSAGE_CHARACTERS: Final = 300
_USAGE_COMMAND: Final = ("/bin/df", "--block-size=1", "--output=used", "/workspace")


class EngineRefused(SandboxFailed):
    """The engine answered, and the answer was no."""


class DockerBackend:
    """Containers of one engine that belong to one instance of ours."""

    name = "docker"

    def __init__(self, docker: Docker, endpoint: Endpoint, engine: EngineTraits, instance: str) -> None:
        self._docker = docker
        self._endpoint = endpoint
        self._engine = engine
        self._instance = instance

    @classmethod
    async def connect(cls, instance: str, environment: Mapping[str, str], data_dir: Path) -> Self:
        """Find an engine and talk to it.

        Raises:
            BackendUnavailable: no engine answers.
        """
        docker, endpoint = await engines.connect(environment)
        try:
            async with engine_errors("its version"):
                return cls(docker, endpoint, await engines.traits(docker, data_dir), instance)
        except SandboxError as error:
            await docker.close()
            raise BackendUnavailable(str(error)) from error

    async def close(self) -> None:
        await self._docker.close()

    async def resolve(self, image: str) -> str:
        """See `SandboxBackend.resolve`: the image's id, which nobody can move."""
        try:
            async with engine_errors(f"image {image}"):
                found = await self._docker.images.inspect(image)
        except SandboxGone:
            raise ImageMissing(
                f"The image {image} is not on this engine. Build it with `make image`, or pull it."
            ) from None
        if volumes := (found.get("Config") or {}).get("Volumes"):
            # The engine would give each a writable place on the host's disk, without any limit.
            raise ImageMissing(
                f"The image {image} declares volumes ({', '.join(volumes)}), which no limit would hold. "
                "Use an image without VOLUME."
            )
        return str(found["Id"])

    async def create(self, spec: SandboxSpec) -> "DockerSandbox":
        """See `SandboxBackend.create`."""
        async with patience(f"{spec.name} to be free or ready"):
            while True:
                try:
                    return await self._create_new(spec)
                except SandboxConflict:
                    if found := await self._adopt(spec):
                        return found
                await asyncio.sleep(_POLL_SECONDS)

    async def find_all(self) -> list["DockerSandbox"]:
        """See `SandboxBackend.find_all`."""
        filters = json.dumps({"label": [f"{names.INSTANCE_LABEL}={self._instance}"]})
        async with engine_errors("the list of sandboxes"):
            containers = await self._docker.containers.list(all="1", filters=filters)
        return [
            DockerSandbox(self, container, container["Names"][0].removeprefix("/"), container["Labels"])
            for container in containers
        ]

    async def _create_new(self, spec: SandboxSpec) -> "DockerSandbox":
        labels = names.labels(self._instance, spec)
        config = container_config(spec, labels, self._engine)
        try:
            async with engine_errors(spec.name):
                container = await self._docker.containers.create(config, name=spec.name)
        except SandboxConflict:
            raise
        except SandboxGone as error:
            raise ImageMissing(f"The image {spec.image} is gone from the engine.") from error
        except BaseException:
            # The engine may have made it although its answer never came.
            await finish(self._remove_by_name(spec))
            raise
        sandbox = DockerSandbox(self, container, spec.name, labels, spec)
        try:
            await sandbox.start()
        except BaseException:
            await finish(sandbox.remove())
            raise
        return sandbox

    async def _adopt(self, spec: SandboxSpec) -> "DockerSandbox | None":
        """The container that has the name, if it is the one asked for and runs; None to try again."""
        try:
            async with engine_errors(spec.name):
                container = await self._docker.containers.get(spec.name)
        except SandboxGone:
            return None  # the name is taken before there is a container, and free only after it
        labels = container["Config"]["Labels"] or {}
        sandbox = DockerSandbox(self, container, spec.name, labels, spec)
        if labels.get(names.INSTANCE_LABEL) != self._instance:
            raise SandboxConflict(f"{spec.name} belongs to something else and was left alone.")
        match container["State"]["Status"]:
            case "exited" | "dead":
                await sandbox.remove()
                return None
            case "created" | "removing":
                return None  # its maker is about to start it; or gave up, and removes it
            case _ if labels.get(names.SPEC_LABEL) != spec.fingerprint:
                raise SandboxConflict(
                    f"{spec.name} runs with another image or other limits; remove it first."
                )
            case status:
                logger.info("Adopted sandbox %s (%s)", spec.name, status)
                return sandbox

    async def _remove_by_name(self, spec: SandboxSpec) -> None:
        with suppress(SandboxError):
            async with engine_errors(spec.name):
                container = await self._docker.containers.get(spec.name)
            labels = container["Config"]["Labels"] or {}
            if (
                labels.get(names.INSTANCE_LABEL) == self._instance
                and container["State"]["Status"] == "created"
            ):
                await DockerSandbox(self, container, spec.name, labels).remove()

    def _target(self, path: str) -> str:
        return f"/{self._docker.api_version}/{path}"


class DockerSandbox:
    """One container. Its name may be taken again by another; its id never is."""

    def __init__(
        self,
        backend: DockerBackend,
        container: DockerContainer,
        name: str,
        labels: Mapping[str, str],
        spec: SandboxSpec | None = None,
    ) -> None:
        self._backend = backend
        self._container = container
        self._spec = spec
        self._first_stream: EngineStream | None = None
        self._is_held = False
        self.id = container.id
        self.name = name
        self.labels = labels

    async def start(self) -> None:
        """Start it, attached: the first words of a server that dies at once must not be lost."""
        self._first_stream = await self._open()
        async with engine_errors(self.name):
            await self._container.start()

    @asynccontextmanager
    async def attach(self) -> AsyncIterator[EngineStream]:
        """See `Sandbox.attach`."""
        if self._is_held:
            raise SandboxBusy(f"{self.name} is attached already.")
        self._is_held = True
        try:
            stream = self._first_stream or await self._reopen()
            self._first_stream = None
            try:
                yield stream
            finally:
                await stream.close()
        finally:
            self._is_held = False

    async def state(self) -> SandboxState:
        """See `Sandbox.state`."""
        try:
            async with engine_errors(self.name):
                state = (await self._container.show())["State"]
        except SandboxGone:
            return SandboxState("gone")
        if state["Status"] == "paused":
            return SandboxState("paused")
        if state["Running"]:
            return SandboxState("running", out_of_memory=bool(state.get("OOMKilled")))
        return SandboxState("stopped", state.get("ExitCode"), bool(state.get("OOMKilled")))

    async def examine(self) -> list[Property]:
        """See `Sandbox.examine`: the engine's own account, line by line."""
        if self._spec is None:
            raise SandboxFailed(f"{self.name} was found, not made or adopted: nothing to compare it with.")
        async with engine_errors(self.name):
            inspected = await self._container.show()
        return deviations(self._spec, inspected, self._backend._engine)

    async def pause(self) -> None:
        """See `Sandbox.pause`."""
        try:
            async with engine_errors(self.name):
                await self._container.pause()
        except (SandboxConflict, EngineRefused):  # engines disagree on the code for "is paused already"
            await self._expect("paused")

    async def resume(self) -> None:
        """See `Sandbox.resume`."""
        try:
            async with engine_errors(self.name):
                await self._container.unpause()
        except (SandboxConflict, EngineRefused):
            await self._expect("running")

    async def stats(self) -> SandboxStats:
        """See `Sandbox.stats`. The workspace is asked by a run inside: no engine call knows a tmpfs."""
        usage, workspace = await asyncio.gather(self._usage(), self._workspace_bytes())
        memory = usage.get("memory_stats") or {}
        details = memory.get("stats") or {}
        # Page cache that can be dropped at once is not used memory (names differ by cgroup version).
        cache = details.get("total_inactive_file", details.get("inactive_file", 0))
        return SandboxStats(
            cpu_seconds=usage["cpu_stats"]["cpu_usage"]["total_usage"] / 1e9,
            memory_bytes=max(0, memory.get("usage", 0) - cache),
            processes=(usage.get("pids_stats") or {}).get("current", 0),
            workspace_bytes=workspace,
        )

    async def export_workspace(self) -> AsyncIterator[bytes]:
        """See `Sandbox.export_workspace`."""
        limits = self._spec.limits if self._spec else SandboxLimits()
        async for piece in archive.bounded(self._run(archive.EXPORT_COMMAND), archive.archive_bound(limits)):
            yield piece

    async def import_workspace(self, archive_bytes: AsyncIterator[bytes]) -> None:
        """See `Sandbox.import_workspace`."""
        async for _ in self._run(archive.IMPORT_COMMAND, archive_bytes):
            pass

    async def remove(self) -> None:
        """See `Sandbox.remove`. Always by force: a server may ignore every polite signal."""
        if self._first_stream is not None:
            await self._first_stream.close()
            self._first_stream = None
        async with patience(f"{self.name} to be removed"):
            while (await self.state()).status != "gone":
                # Somebody else may be at it, or it ends by itself just now: then ask again.
                with suppress(SandboxGone, SandboxConflict, EngineRefused):
                    async with engine_errors(self.name):
                        await self._container.delete(force=True, v=True)
                        return
                await asyncio.sleep(_POLL_SECONDS)

    async def _open(self) -> EngineStream:
        target = f"containers/{self.id}/attach?stream=1&stdin=1&stdout=1&stderr=1"
        return await open_stream(self._backend._endpoint, self._backend._target(target))

    async def _reopen(self) -> EngineStream:
        # Attaching to what does not run succeeds on some engines, and then hangs.
        if (state := await self.state()).status != "running":
            raise SandboxGone(f"{self.name} cannot be attached: it is {state.status}.")
        stream = await self._open()
        stream.is_fresh = False
        return stream

    async def _expect(self, status: str) -> None:
        if (state := await self.state()).status != status:
            raise SandboxGone(f"{self.name} should be {status} but is {state.status}.")

    async def _usage(self) -> dict[str, Any]:
        async with engine_errors(self.name):
            # Not the library's own verb: without one-shot the engine waits a second for a second sample.
            answer = await self._backend._docker._query_json(
                f"containers/{self.id}/stats", params={"stream": "0", "one-shot": "1"}
            )
        if not isinstance(answer, dict):  # Podman has none for some containers, and answers with nothing
            raise EngineRefused(f"The engine has no statistics of {self.name}.")
        if not answer.get("cpu_stats", {}).get("cpu_usage", {}).get("total_usage"):
            raise SandboxGone(f"{self.name} does not run: no statistics.")
        return answer

    async def _workspace_bytes(self) -> int | None:
        try:
            output = b"".join([piece async for piece in self._run(_USAGE_COMMAND)])
            return int(output.split()[-1])
        except (SandboxError, ValueError, IndexError):
            return None

    async def _run(
        self, command: tuple[str, ...], stdin: AsyncIterator[bytes] | None = None
    ) -> AsyncIterator[bytes]:
        """Run a program of the image beside the server, yield its stdout, expect it to succeed."""
        async with engine_errors(self.name):
            execution = await self._container.exec(command, stdin=stdin is not None, user=USER, workdir="/")
        target = self._backend._target(f"exec/{execution.id}/start")
        complaint = b""
        async with opened_stream(self._backend._endpoint, target, b'{"Detach":false,"Tty":false}') as stream:
            feeding = asyncio.create_task(_feed(stream, stdin))
            try:
                while (output := await stream.read()) is not None:
                    if output.source == "stdout":
                        yield output.data
                    else:
                        complaint = (complaint + output.data)[-_STDERR_KEPT:]
            finally:
                feeding.cancel()
                await asyncio.gather(feeding, return_exceptions=True)
        async with engine_errors(self.name):
            code = (await execution.inspect()).get("ExitCode")
        if code not in (0, archive.SOME_FILES_CHANGED):
            text = complaint.decode(errors="replace").strip()
            raise ArchiveFailed(f"{command[0]} in {self.name} ended with {code}: {text}")


async def _feed(stream: EngineStream, source: AsyncIterator[bytes] | None) -> None:
    if source is None:
        return
    with suppress(SandboxGone):  # it ended early; its exit code says why
        async for piece in source:
            await stream.write(piece)
    await stream.end_input()


async def finish(work: Any) -> None:
    """Run clean-up to its end even while we are being cancelled; its own failure is only logged."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task], timeout=_ENGINE_SECONDS)
        raise
    except SandboxError as error:
        logger.warning("Clean-up failed: %s", error)


@asynccontextmanager
async def patience(what: str) -> AsyncIterator[None]:
    """Put a limit on waiting for something that somebody else is doing."""
    try:
        async with asyncio.timeout(_ENGINE_SECONDS):
            yield
    except TimeoutError as error:
        raise SandboxFailed(f"Waited {_ENGINE_SECONDS} s in vain for {what}.") from error


@asynccontextmanager
async def engine_errors(subject: str) -> AsyncIterator[None]:
    """Put a limit on an engine call and turn what goes wrong into our words."""
    try:
        async with asyncio.timeout(_ENGINE_SECONDS):
            yield
    except DockerError as error:
        said = error.message[:_MESSAGE_CHARACTERS]
        match error.status:
            case 404:
                raise SandboxGone(f"The engine does not know {subject}.") from error
            case 409:
                raise SandboxConflict(f"The engine refuses for {subject}: {said}") from error
            case 500 if "already in use" in said:  # Podman's word for the same
                raise SandboxConflict(f"The engine refuses for {subject}: {said}") from error
            case status:
                raise EngineRefused(f"The engine answered {status} for {subject}: {said}") from error
    except TimeoutError as error:
        raise SandboxFailed(f"The engine did not answer for {subject} within {_ENGINE_SECONDS} s.") from error
    except (ClientError, OSError) as error:
        raise SandboxFailed(f"The engine cannot be reached for {subject}: {error}") from error
