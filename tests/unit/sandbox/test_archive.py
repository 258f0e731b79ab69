"""Archives of a workspace, in every back end."""

from collections.abc import AsyncIterator

import pytest

from mcp_orchestrator.sandbox.archive import EXPORT_COMMAND, IMPORT_COMMAND, archive_bound, bounded
from mcp_orchestrator.sandbox.backend import ArchiveFailed, SandboxLimits


async def chunks(*sizes: int) -> AsyncIterator[bytes]:
    for size in sizes:
        yield bytes(size)


async def test_an_archive_within_its_bound_passes_unchanged() -> None:
    assert [len(chunk) async for chunk in bounded(chunks(3, 4, 3), 10)] == [3, 4, 3]


async def test_an_archive_that_grows_past_its_bound_is_given_up_at_once() -> None:
    archive = bounded(chunks(5, 5, 1, 1000), 10)
    assert [len(await anext(archive)), len(await anext(archive))] == [5, 5]
    with pytest.raises(ArchiveFailed):
        await anext(archive)


def test_the_bound_leaves_room_for_a_full_workspace() -> None:
    limits = SandboxLimits()
    assert archive_bound(limits) > limits.workspace_bytes + limits.workspace_files * 1024


def test_owners_are_forgotten_and_holes_stay_holes() -> None:
    assert "--sparse" in EXPORT_COMMAND
    assert "--no-same-owner" in IMPORT_COMMAND
