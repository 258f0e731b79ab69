"""One sandbox made by bubblewrap: a process of ours, and all that lives in its namespaces."""

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from importlib import resources

from mcp_orchestrator.sandbox import seccomp
from mcp_orchestrator.sandbox.archive import (
    EXPORT_COMMAND,
    IMPORT_COMMAND,
    SOME_FILES_CHANGED,
    archive_bound,
    bounded,
)
from mcp_orchestrator.sandbox.backend import (
    ArchiveFailed,
    SandboxBusy,
    SandboxFailed,
    SandboxGone,
    SandboxSpec,
    SandboxState,
    SandboxStats,
)
from mcp_orchestrator.sandbox.bubblewrap import enter, examination, procfs
from mcp_orchestrator.sandbox.bubblewrap.cgroups import ControlGroup
from mcp_orchestrator.sandbox.bubblewrap.launch import Launched
from mcp_orchestrator.sandbox.bubblewrap.process import Process
from mcp_orchestrator.sandbox.bubblewrap.streams import PipeStreams
from mcp_orchestrator.sandbox.cleanup import finish
from mcp_orchestrator.sandbox.properties import Property

logger = logging.getLogger(__name__)

# The kernel ends a namespace in milliseconds; a fork bomb on a busy machine takes longer.
REMOVAL_SECONDS = 10
# Stopping is asynchronous and everything inside may be forking meanwhile.
PAUSE_SECONDS = 5
# tar reads and writes memory: one that says nothing for so long is stuck.
ARCHIVE_STALL_SECONDS = 60
POLL_SECONDS = 0.01
STDERR_BYTES = 2048


class BubblewrapSandbox:
    """Lives as long as this process, and no longer than `remove`."""

    def __init__(
        self,
        spec: SandboxSpec,
        labels: Mapping[str, str],
        launched: Launched,
        *,
        uid: int | None,
        group: ControlGroup | None,
        let_go: Callable[[], None],
    ) -> None:
        """`let_go` gives its name back."""
        self.id = secrets.token_hex(16)
        self.name = spec.name
        self.labels = labels
        self.spec = spec
        self._process, self._init, self._init_pidfd = launched
        self._uid = uid
        self._group = group
        self._let_go = let_go
        self._is_held = self._is_paused = self._is_removed = False
        self._removal: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def attach(self) -> AsyncIterator[PipeStreams]:
        """See `Sandbox.attach`. What a server said before it died can still be read, once."""
        streams = self._process.streams
        if self._is_removed or (self._has_ended and not streams.is_fresh):
            raise self._gone()
        if self._is_held:
            raise SandboxBusy(f"Sandbox '{self.name}' is attached already.")
        self._is_held = True
        try:
            yield streams
        finally:
            streams.is_fresh = False
            self._is_held = False

    async def state(self) -> SandboxState:
        """See `Sandbox.state`."""
        if self._is_removed:
            return SandboxState("gone")
        out_of_memory = self._group is not None and self._group.has_run_out_of_memory
        if self._has_ended:
            return SandboxState("stopped", self._process.exit_code, out_of_memory)
        return SandboxState("paused" if self._is_paused else "running", out_of_memory=out_of_memory)

    async def examine(self) -> list[Property]:
        """See `Sandbox.examine`."""
        self._require_running()
        return examination.examine(self._init, self.spec.limits, self._group)

    async def pause(self) -> None:
        """See `Sandbox.pause`."""
        self._require_running()
        self._is_paused = True
        try:
            await self._within(PAUSE_SECONDS, self._stopped, "could not be paused")
        except BaseException:
            self._let_run()
            raise

    async def resume(self) -> None:
        """See `Sandbox.resume`."""
        self._require_running()
        self._let_run()

    async def stats(self) -> SandboxStats:
        """See `Sandbox.stats`."""
        self._require_running()
        usage = self._group.usage() if self._group else examination.usage(self._init)
        try:
            workspace = os.statvfs(f"/proc/{self._init}/root/workspace")
        except OSError:
            return SandboxStats(*usage, workspace_bytes=None)
        return SandboxStats(*usage, (workspace.f_blocks - workspace.f_bfree) * workspace.f_frsize)

    async def export_workspace(self) -> AsyncGenerator[bytes, None]:
        """See `Sandbox.export_workspace`."""
        async with self._inside(EXPORT_COMMAND) as tar:
            output = bounded(self._output_of(tar, {0, SOME_FILES_CHANGED}), archive_bound(self.spec.limits))
            async for chunk in output:
                yield chunk

    async def import_workspace(self, archive: AsyncIterator[bytes]) -> None:
        """See `Sandbox.import_workspace`."""
        async with self._inside(IMPORT_COMMAND) as tar, _running(_feed(tar, archive)):
            async for _ in self._output_of(tar, {0}):
                pass

    async def remove(self) -> None:
        """See `Sandbox.remove`. It goes on when whoever asked for it is cancelled."""
        if self._removal is None or (self._removal.done() and not self._is_removed):
            self._removal = asyncio.create_task(self._remove(), name=f"remove {self.name}")
        await finish(self._removal)

    @property
    def _has_ended(self) -> bool:
        return self._process.exit_code is not None

    def _require_running(self) -> None:
        if self._is_removed or self._has_ended:
            raise self._gone()

    def _gone(self) -> SandboxGone:
        return SandboxGone(f"Sandbox '{self.name}' is not there any more.")

    async def _remove(self) -> None:
        if self._is_removed:
            return
        # With its first process the kernel takes all others of a pid namespace, however many.
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._init_pidfd, signal.SIGKILL)
        await self._within(REMOVAL_SECONDS, self._vanished, "could not be removed; it is tried again later")
        await self._process.end()
        os.close(self._init_pidfd)
        self._is_removed = True
        self._let_go()
        logger.info("Removed sandbox %s", self.name)

    def _vanished(self) -> bool:
        if self._group is None:
            return self._has_ended
        # Also what is frozen, and a tar that had not yet gone inside.
        self._group.kill()
        return self._has_ended and self._group.remove()

    def _stopped(self) -> bool:
        """Begin to stop everything, or go on with it; whether all of it has stopped."""
        if self._group is not None and "freezer" in self._group.controllers:
            self._group.freeze(True)
            return self._group.is_frozen
        moving = [pid for pid in procfs.members(self._init) if procfs.is_moving(pid)]
        procfs.signal_all(moving, signal.SIGSTOP)
        return not moving

    def _let_run(self) -> None:
        if self._group is not None and "freezer" in self._group.controllers:
            self._group.freeze(False)
        else:
            procfs.signal_all(procfs.members(self._init), signal.SIGCONT)
        self._is_paused = False

    async def _within(self, seconds: float, is_done: Callable[[], bool], failure: str) -> None:
        try:
            async with asyncio.timeout(seconds):
                while not is_done():
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            raise SandboxFailed(f"Sandbox '{self.name}' {failure} (waited {seconds} s).") from None

    @asynccontextmanager
    async def _inside(self, command: tuple[str, ...]) -> AsyncIterator[Process]:
        """A program of the system's in the sandbox's namespaces, groups and filter; ended on leaving."""
        self._require_running()
        if self._is_paused:
            raise ArchiveFailed(f"Sandbox '{self.name}' is paused; resume it first.")
        groups = [str(path) for path in self._group.joining_files] if self._group else []
        program = resources.files(seccomp) / f"{os.uname().machine}.bpf"
        uid = -1 if self._uid is None else self._uid
        arguments = [self._init_pidfd, uid, program, self.spec.limits.workspace_bytes, *groups]
        start = [sys.executable, "-I", "-S", enter.__file__, *map(str, arguments)]
        process = Process(self.name, [*start, "--", *command], [self._init_pidfd])
        try:
            yield process
        finally:
            await finish(process.end())

    async def _output_of(self, process: Process, good: set[int]) -> AsyncIterator[bytes]:
        """What it writes, and an error if it does not end well."""
        complaint = b""
        while True:
            try:
                async with asyncio.timeout(ARCHIVE_STALL_SECONDS):
                    output = await process.streams.read()
                    code = await process.ended() if output is None else None
            except TimeoutError:
                raise ArchiveFailed(f"The archive program of sandbox '{self.name}' is stuck.") from None
            if output is None:
                break
            if output.source == "stdout":
                yield output.data
            else:
                complaint = (complaint + output.data)[-STDERR_BYTES:]
        if code not in good:
            if self._has_ended or self._is_removed:
                raise self._gone()
            said = complaint.decode(errors="replace").strip()
            raise ArchiveFailed(f"The archive program of sandbox '{self.name}' ended with {code}: {said}")


@asynccontextmanager
async def _running(work: Awaitable[None]) -> AsyncIterator[None]:
    """Work beside the block; it ends with it."""
    task = asyncio.ensure_future(work)
    try:
        yield
        await task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _feed(process: Process, archive: AsyncIterator[bytes]) -> None:
    # One that does not read to the end says why by its exit code.
    with contextlib.suppress(SandboxGone):
        async for chunk in archive:
            await process.streams.write(chunk)
    process.streams.close_input()
