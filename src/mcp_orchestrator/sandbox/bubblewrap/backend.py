"""The back end for machines without an engine: decides who gets which name and keeps account.

A sandbox dies with the process that made it; the kernel sees to that. What may be left
are empty control groups and claims, which the next process cleans up.
"""

import asyncio
import logging
import os
import re
import secrets
import signal
from pathlib import Path
from typing import Self
from weakref import WeakValueDictionary

from mcp_orchestrator.sandbox import names, seccomp
from mcp_orchestrator.sandbox.backend import (
    BackendUnavailable,
    ImageMissing,
    SandboxConflict,
    SandboxError,
    SandboxFailed,
    SandboxSpec,
)
from mcp_orchestrator.sandbox.bubblewrap import procfs, users
from mcp_orchestrator.sandbox.bubblewrap.cgroups import ControlGroup, Hierarchy, own_hierarchy
from mcp_orchestrator.sandbox.bubblewrap.claims import Claim, Remains, claimed_names, make_runtime_dir
from mcp_orchestrator.sandbox.bubblewrap.launch import launch
from mcp_orchestrator.sandbox.bubblewrap.program import Programs, find_programs
from mcp_orchestrator.sandbox.bubblewrap.sandbox import POLL_SECONDS, BubblewrapSandbox
from mcp_orchestrator.sandbox.cleanup import finish

logger = logging.getLogger(__name__)

# The image that this back end stands in for: the host's own system with our server.
BUILT_IN_IMAGES = ("", "mcp-server:latest")
# What a dead process left is killed already; this is for the kernel to notice.
CLEANUP_SECONDS = 5
SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


class BubblewrapBackend:
    """Sandboxes of one instance, made and known by this process."""

    name = "bubblewrap"

    def __init__(self, instance: str, runtime_dir: Path, programs: Programs, groups: Hierarchy) -> None:
        self._instance = instance
        self._runtime_dir = runtime_dir
        self._programs = programs
        self._groups = groups
        self._sandboxes: dict[str, BubblewrapSandbox] = {}
        self._creating: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @classmethod
    async def connect(cls, instance: str, runtime_dir: Path) -> Self:
        """Find what is needed on this machine, try it, and clean up after a process that died.

        Raises:
            BackendUnavailable: it does not work here; the message says what to do.
        """
        seccomp.filter_program()
        make_runtime_dir(runtime_dir)
        backend = cls(instance, runtime_dir, await find_programs(), own_hierarchy())
        await backend.find_all()
        await backend._try_out()
        return backend

    async def close(self) -> None:
        """Remove every sandbox: none can outlive us."""
        await finish(asyncio.gather(*(sandbox.remove() for sandbox in list(self._sandboxes.values()))))

    async def resolve(self, image: str) -> str:
        """See `SandboxBackend.resolve`. There is one: this host's system with the workspace server."""
        if image not in (*BUILT_IN_IMAGES, self._programs.identity):
            raise ImageMissing(
                f"bubblewrap has no images, so {image} cannot run. Use an engine, or unset SANDBOX_IMAGE."
            )
        return self._programs.identity

    async def create(self, spec: SandboxSpec) -> BubblewrapSandbox:
        """See `SandboxBackend.create`."""
        self._require_possible(spec)
        async with self._creating.setdefault(spec.name, asyncio.Lock()):
            existing = self._sandboxes.get(spec.name)
            if existing is None:
                return await self._make(spec)
            if (await existing.state()).status not in ("running", "paused"):
                await existing.remove()
                return await self._make(spec)
            if existing.spec.fingerprint != spec.fingerprint:
                raise SandboxConflict(f"Sandbox '{spec.name}' runs with other limits; remove it first.")
            return existing

    async def find_all(self) -> list[BubblewrapSandbox]:
        """See `SandboxBackend.find_all`. Those of dead processes are dead too and are cleaned up."""
        for name in claimed_names(self._runtime_dir):
            try:
                claim = Claim.take(self._runtime_dir, name)
            except SandboxConflict:
                continue
            await self._give_up(name, claim)
        return list(self._sandboxes.values())

    async def _try_out(self) -> None:
        spec = SandboxSpec(names.pool_name(self._instance), self._programs.identity, ("/bin/true",))
        try:
            await (await self.create(spec)).remove()
        except SandboxError as error:
            raise BackendUnavailable(str(error)) from error

    def _require_possible(self, spec: SandboxSpec) -> None:
        if not SAFE_NAME.fullmatch(spec.name):
            raise SandboxFailed(f"{spec.name!r} cannot be the name of a sandbox.")
        if spec.runtime:
            raise SandboxFailed(f"bubblewrap has no runtime {spec.runtime}. Use an engine, or unset it.")
        if spec.image != self._programs.identity:
            raise SandboxFailed(f"bubblewrap cannot run the image {spec.image}, only its own.")

    async def _make(self, spec: SandboxSpec) -> BubblewrapSandbox:
        uid = await asyncio.to_thread(users.unused_uid) if os.geteuid() == 0 else None
        claim = Claim.take(self._runtime_dir, spec.name)
        mark = secrets.token_hex(16)
        try:
            await _clean(spec.name, claim.remains())
            group = self._make_group(spec, claim, mark)
            launched = await launch(spec, self._programs, mark, uid, group)
        except BaseException as error:
            await finish(self._give_up(spec.name, claim))
            if isinstance(error, OSError):
                raise SandboxFailed(f"Sandbox '{spec.name}' could not be made: {error}") from error
            raise

        def let_go() -> None:
            claim.release()
            self._sandboxes.pop(spec.name, None)

        sandbox = BubblewrapSandbox(
            spec, names.labels(self._instance, spec), launched, uid=uid, group=group, let_go=let_go
        )
        self._sandboxes[spec.name] = sandbox
        logger.info("Made sandbox %s", spec.name)
        return sandbox

    def _make_group(self, spec: SandboxSpec, claim: Claim, mark: str) -> ControlGroup | None:
        claim.note(Remains(mark=mark))
        if not self._groups.controllers:
            return None
        group = self._groups.group(spec.name)
        group.make()
        # Noted when we know that nobody else is in there: what is noted is killed when we give up.
        claim.note(Remains(self._groups, mark))
        group.limit(spec.limits)
        return group

    async def _give_up(self, name: str, claim: Claim) -> None:
        await _clean(name, claim.remains())
        claim.release()


async def _clean(name: str, remains: Remains) -> None:
    """Remove what a sandbox left that nobody holds."""
    if remains.mark:
        procfs.signal_all(procfs.marked(remains.mark), signal.SIGKILL)
    if not remains.groups.controllers:
        return
    group = remains.groups.group(name)
    try:
        async with asyncio.timeout(CLEANUP_SECONDS):
            while not group.remove():
                group.kill()
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        logger.warning("Control groups of %s could not be removed: %s", name, group.directories)
