"""One container, by the verbs of `Sandbox`."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, NamedTuple

from aiodocker import Docker
from aiodocker.containers import DockerContainer

from mcp_orchestrator.sandbox import archive
from mcp_orchestrator.sandbox.backend import (
    ArchiveFailed,
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
from mcp_orchestrator.sandbox.cleanup import finish
from mcp_orchestrator.sandbox.docker.account import deviations
from mcp_orchestrator.sandbox.docker.description import USER, EngineTraits
from mcp_orchestrator.sandbox.docker.requests import (
    ENGINE_SECONDS,
    POLL_SECONDS,
    EngineRefused,
    engine_errors,
    patience,
)
from mcp_orchestrator.sandbox.docker.stream import Endpoint, EngineStream, open_stream, opened_stream
from mcp_orchestrator.sandbox.properties import Property

_USAGE_COMMAND: Final = ("/bin/df", "--block-size=1", "--output=used", "/workspace")
# Two short lines; an image whose df says more is lying.
_USAGE_BYTES: Final = 1024
_STDERR_KEPT: Final = 2048


class Engine(NamedTuple):
    """An engine as it is spoken to: commands, streams, and what is particular to it."""

    docker: Docker
    endpoint: Endpoint
    traits: EngineTraits


class DockerSandbox:
    """One container. Its name may be taken again by another; its id never is."""

    def __init__(
        self, engine: Engine, container: DockerContainer, name: str, labels: Mapping[str, str]
    ) -> None:
        self._docker, self._endpoint, self._traits = engine
        self._container = container
        self._first_stream: EngineStream | None = None
        self._is_held = False
        self.id = container.id
        self.name = name
        self.labels = labels
        self.spec: SandboxSpec | None = None
        """What it was made by; unknown for one that was only found."""

    async def start_attached(self) -> None:
        """Start it with its streams open: the first words of a server that dies at once must not be lost."""
        self._first_stream = await self._open()
        await self.start()

    async def start(self) -> None:
        """Start it, unless it runs."""
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
        if self.spec is None:
            raise SandboxFailed(f"{self.name} was found, not made or adopted: nothing to compare it with.")
        async with engine_errors(self.name):
            inspected, image = await asyncio.gather(
                self._container.show(), self._docker.images.inspect(self.spec.image)
            )
        return deviations(self.spec, inspected, image, self._traits)

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
        limits = self.spec.limits if self.spec else SandboxLimits()
        run = self._run(archive.EXPORT_COMMAND, accepted=(0, archive.SOME_FILES_CHANGED))
        async for piece in archive.bounded(run, archive.archive_bound(limits)):
            yield piece

    async def import_workspace(self, archive_bytes: AsyncIterator[bytes]) -> None:
        """See `Sandbox.import_workspace`."""
        async for _ in archive.bounded(self._run(archive.IMPORT_COMMAND, archive_bytes), _STDERR_KEPT):
            pass

    async def remove(self) -> None:
        """See `Sandbox.remove`. Always by force: a server may ignore every polite signal."""
        await finish(self._remove())

    async def _remove(self) -> None:
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
                await asyncio.sleep(POLL_SECONDS)

    async def _open(self) -> EngineStream:
        return await open_stream(
            self._endpoint,
            self._target(f"containers/{self.id}/attach?stream=1&stdin=1&stdout=1&stderr=1"),
        )

    async def _reopen(self) -> EngineStream:
        # Attaching to what does not run succeeds on some engines, and then hangs.
        if (state := await self.state()).status != "running":
            raise SandboxGone(f"{self.name} cannot be attached: it is {state.status}.")
        stream = await self._open()
        stream.is_fresh = False
        return stream

    def _target(self, path: str) -> str:
        return f"/{self._docker.api_version}/{path}"

    async def _expect(self, status: str) -> None:
        if (state := await self.state()).status != status:
            raise SandboxGone(f"{self.name} should be {status} but is {state.status}.")

    async def _usage(self) -> dict[str, Any]:
        async with engine_errors(self.name):
            # Not the library's own verb: without one-shot the engine waits a second for a second sample.
            answer = await self._docker._query_json(
                f"containers/{self.id}/stats", params={"stream": "0", "one-shot": "1"}
            )
        if not isinstance(answer, dict):  # Podman has none for some containers, and answers with nothing
            raise EngineRefused(f"The engine has no statistics of {self.name}.")
        if not answer.get("cpu_stats", {}).get("cpu_usage", {}).get("total_usage"):
            raise SandboxGone(f"{self.name} does not run: no statistics.")
        return answer

    async def _workspace_bytes(self) -> int | None:
        try:
            run = archive.bounded(self._run(_USAGE_COMMAND), _USAGE_BYTES)
            return int(b"".join([piece async for piece in run]).split()[-1])
        except (SandboxError, ValueError, IndexError):
            return None

    async def _run(
        self,
        command: tuple[str, ...],
        stdin: AsyncIterator[bytes] | None = None,
        accepted: tuple[int, ...] = (0,),
    ) -> AsyncIterator[bytes]:
        """Run a program of the image beside the server, yield its stdout, expect it to succeed."""
        async with engine_errors(self.name):
            execution = await self._container.exec(command, stdin=stdin is not None, user=USER, workdir="/")
        target = self._target(f"exec/{execution.id}/start")
        complaint = b""
        async with opened_stream(self._endpoint, target, b'{"Detach":false,"Tty":false}') as stream:
            feeding = asyncio.create_task(_feed(stream, stdin))
            try:
                async for source, data in _read_steadily(stream, command[0]):
                    if source == "stdout":
                        yield data
                    else:
                        complaint = (complaint + data)[-_STDERR_KEPT:]
            finally:
                feeding.cancel()
                await asyncio.gather(feeding, return_exceptions=True)
        async with engine_errors(self.name):
            code = (await execution.inspect()).get("ExitCode")
        if code not in accepted:
            text = complaint.decode(errors="replace").strip()
            raise ArchiveFailed(f"{command[0]} in {self.name} ended with {code}: {text}")


async def _read_steadily(stream: EngineStream, program: str) -> AsyncIterator[tuple[str, bytes]]:
    """All that a program says, as long as it goes on saying something."""
    while True:
        try:
            async with asyncio.timeout(ENGINE_SECONDS):
                output = await stream.read()
        except TimeoutError as error:
            raise ArchiveFailed(f"{program} said nothing for {ENGINE_SECONDS} s.") from error
        if output is None:
            return
        yield output


async def _feed(stream: EngineStream, source: AsyncIterator[bytes] | None) -> None:
    if source is None:
        return
    with suppress(SandboxGone):  # it ended early; its exit code says why
        async for piece in source:
            await stream.write(piece)
    await stream.end_input()
