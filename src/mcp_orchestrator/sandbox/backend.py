"""The seam: what a sandbox is to everything above it.

Plain data goes in and comes out, so the same verbs can later be spoken over a
socket to a separate launcher, or by a cluster. How a sandbox is made, and what
holds it shut, belongs to the back ends beside this file.
"""

import hashlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass, field
from typing import Literal, NamedTuple, Protocol

from mcp_orchestrator.errors import OrchestratorError
from mcp_orchestrator.sandbox.properties import Property

MIB = 1024 * 1024

# Everyone in a sandbox is this user, whatever the image says of itself.
SANDBOX_UID = 1000


@dataclass(frozen=True)
class SandboxLimits:
    """What one sandbox may use. The temporary file systems count into the memory."""

    memory_bytes: int = 512 * MIB
    cpus: float = 0.5
    processes: int = 128
    open_files: int = 1024
    workspace_bytes: int = 128 * MIB
    workspace_files: int = 16_384
    tmp_bytes: int = 64 * MIB
    tmp_files: int = 4_096
    shm_bytes: int = 16 * MIB


@dataclass(frozen=True)
class SandboxSpec:
    """All that distinguishes one sandbox from another; the hardening is not up for choice.

    Attributes:
        name: Unique on the host; two creations of one name never both succeed.
        image: What `SandboxBackend.resolve` answered, never a tag.
        command: What runs as the server; empty for the image's own.
        runtime: An OCI runtime other than the engine's default, such as `runsc`.
    """

    name: str
    image: str
    command: tuple[str, ...] = ()
    limits: SandboxLimits = field(default_factory=SandboxLimits)
    runtime: str = ""

    @property
    def fingerprint(self) -> str:
        """Equal for sandboxes that could stand in for each other: all but the name."""
        shape = {key: value for key, value in asdict(self).items() if key != "name"}
        return hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:16]


class SandboxState(NamedTuple):
    """What became of a sandbox, as the back end sees it now."""

    status: Literal["running", "paused", "stopped", "gone"]
    exit_code: int | None = None
    # True also when only a child of the server was killed: not "the server died".
    out_of_memory: bool = False


class SandboxStats(NamedTuple):
    """What a sandbox uses now; `workspace_bytes` is None when it could not be asked."""

    cpu_seconds: float
    memory_bytes: int
    processes: int
    workspace_bytes: int | None


class Output(NamedTuple):
    """Some bytes a sandbox wrote: no line, no character need be whole."""

    source: Literal["stdout", "stderr"]
    data: bytes


class ByteStreams(Protocol):
    """The standard streams of a sandbox's server, held by one holder."""

    is_fresh: bool
    """Whether nobody held them before: else half a line may lie in stdin."""

    async def read(self) -> Output | None:
        """The next bytes, or None at the end. One reader at a time."""
        ...

    async def write(self, data: bytes) -> None:
        """Hand over all of `data`, waiting while the server does not read.

        Raises:
            SandboxGone: nobody can read it any more.
        """
        ...


class Sandbox(Protocol):
    """One isolated MCP server, reached by its standard streams."""

    @property
    def id(self) -> str:
        """Never reused, unlike the name."""
        ...

    @property
    def name(self) -> str: ...

    @property
    def labels(self) -> Mapping[str, str]: ...

    def attach(self) -> AbstractAsyncContextManager[ByteStreams]:
        """Open the streams for one holder; leaving closes them and stops nothing.

        Raises:
            SandboxGone: it stopped before it could be attached.
            SandboxBusy: somebody in this process holds them.
        """
        ...

    async def state(self) -> SandboxState: ...

    async def examine(self) -> list[Property]:
        """Which promised properties hold, as seen from outside."""
        ...

    async def pause(self) -> None:
        """Stop all its processes where they are. Pausing twice does nothing."""
        ...

    async def resume(self) -> None:
        """Let them go on. Resuming what runs does nothing."""
        ...

    async def stats(self) -> SandboxStats: ...

    def export_workspace(self) -> AsyncIterator[bytes]:
        """/workspace as a tar archive.

        Raises:
            SandboxGone: there is nothing to export any more.
            ArchiveFailed: it could not be read, or grew past its bound.
        """
        ...

    async def import_workspace(self, archive: AsyncIterator[bytes]) -> None:
        """Unpack a tar archive into /workspace, over what is there.

        Raises:
            SandboxGone: there is nothing to unpack into.
            ArchiveFailed: it does not fit or is no archive; some of it may be there.
        """
        ...

    async def remove(self) -> None:
        """Delete it and all it holds, whatever runs in it. A second call does nothing."""
        ...


class SandboxBackend(Protocol):
    """Makes sandboxes of one kind, and finds those an earlier process left."""

    @property
    def name(self) -> str:
        """As in `SANDBOX_BACKEND`."""
        ...

    async def resolve(self, image: str) -> str:
        """The immutable identity of an image, for `SandboxSpec.image`.

        Raises:
            ImageMissing: it is not here; the message says how to get it.
        """
        ...

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """A running sandbox of that name: new, or the one already there if it is the same.

        Raises:
            SandboxConflict: the name is taken by something else.
            SandboxFailed: it could not be made; nothing of it is left.
        """
        ...

    async def find_all(self) -> Sequence[Sandbox]:
        """Every sandbox of this instance, running or not, whoever made it."""
        ...

    async def close(self) -> None:
        """Let go of what the back end itself holds. What can outlive us stays."""
        ...


class SandboxError(OrchestratorError):
    """Base of what goes wrong with sandboxes: our failure, never the tool's."""


class BackendUnavailable(SandboxError):
    """A back end does not work here; the message says why and what to do."""


class ImageMissing(SandboxError):
    """The image is not on this host."""


class SandboxFailed(SandboxError):
    """A sandbox could not be made or commanded."""


class SandboxConflict(SandboxError):
    """Another sandbox has this name and is not the one asked for."""


class SandboxGone(SandboxError):
    """The sandbox is not there any more."""


class SandboxBusy(SandboxError):
    """The streams are held already."""


class SandboxStreamBroken(SandboxError):
    """What came over the stream cannot be what a server wrote."""


class ArchiveFailed(SandboxError):
    """The workspace could not be exported or imported."""
