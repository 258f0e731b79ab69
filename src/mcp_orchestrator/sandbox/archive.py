"""How a workspace becomes a tar archive and back, the same in every back end.

Both programs run inside the sandbox, as its user: what the files are and where their
links point is up to whoever wrote them, so nothing of ours ever walks them.
"""

from collections.abc import AsyncIterator

from mcp_orchestrator.sandbox.backend import MIB, ArchiveFailed, SandboxLimits

# A file its owner made unreadable is left out: it must not keep the others from being saved.
EXPORT_COMMAND = (
    "/bin/tar",
    "--create",
    "--file=-",
    "--sparse",
    "--ignore-failed-read",
    "--directory=/workspace",
    ".",
)
IMPORT_COMMAND = (
    "/bin/tar",
    "--extract",
    "--file=-",
    "--no-same-owner",
    "--preserve-permissions",
    "--directory=/workspace",
)

# tar's word for "a file changed while it was read": what a live workspace does.
SOME_FILES_CHANGED = 1


def archive_bound(limits: SandboxLimits) -> int:
    """More bytes than an honest archive of a full workspace has: each file has headers and a long name."""
    return limits.workspace_bytes + limits.workspace_files * 6 * 1024 + MIB


async def bounded(chunks: AsyncIterator[bytes], bound: int) -> AsyncIterator[bytes]:
    """The same chunks, as long as they fit together.

    Raises:
        ArchiveFailed: they grew past the bound.
    """
    total = 0
    async for chunk in chunks:
        total += len(chunk)
        if total > bound:
            raise ArchiveFailed(
                f"The archive of the workspace grew past {bound // MIB} MiB and was given up."
            )
        yield chunk
