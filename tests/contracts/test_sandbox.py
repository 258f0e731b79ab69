"""What every back end guarantees, by the words of `Sandbox` and `SandboxBackend`."""

import asyncio
import io
import tarfile
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from mcp_orchestrator.sandbox import names
from mcp_orchestrator.sandbox.backend import (
    MIB,
    ArchiveFailed,
    Sandbox,
    SandboxBusy,
    SandboxConflict,
    SandboxGone,
    SandboxLimits,
)
from tests.support.workshop import Workshop, read_all, read_until

ECHO = "/bin/cat"


async def test_what_is_written_comes_back(workshop: Workshop) -> None:
    sandbox = await workshop.make(ECHO)

    async with sandbox.attach() as streams:
        await streams.write("Grüße\n".encode())
        assert await read_until(streams, lambda said: said.endswith(b"\n")) == "Grüße\n".encode()


async def test_stdout_and_stderr_are_told_apart(workshop: Workshop) -> None:
    sandbox = await workshop.make("/bin/sh", "-c", "echo out; echo err >&2; read wait")

    async with sandbox.attach() as streams:
        await streams.write(b"go\n")
        assert await read_all(streams) == (b"out\n", b"err\n")


async def test_one_holder_at_a_time_and_detaching_stops_nothing(workshop: Workshop) -> None:
    sandbox = await workshop.make(ECHO)

    async with sandbox.attach() as first:
        assert first.is_fresh
        with pytest.raises(SandboxBusy):
            async with sandbox.attach():
                pass
    async with sandbox.attach() as second:
        assert not second.is_fresh
        await second.write(b"still there\n")
        assert await read_until(second, lambda said: said.endswith(b"\n")) == b"still there\n"


async def test_the_end_of_the_server_is_the_end_of_its_streams(workshop: Workshop) -> None:
    sandbox = await workshop.make("/bin/sh", "-c", "read wait; exit 3")

    async with sandbox.attach() as streams:
        await streams.write(b"go\n")
        assert await read_all(streams) == (b"", b"")
        with pytest.raises(SandboxGone):
            await streams.write(b"anybody?\n")
    async with asyncio.timeout(5):
        while (state := await sandbox.state()).status == "running":
            await asyncio.sleep(0)
    assert (state.status, state.exit_code) == ("stopped", 3)
    with pytest.raises(SandboxGone):
        async with sandbox.attach():
            pass


async def test_ten_megabytes_pass_through_in_both_directions(workshop: Workshop) -> None:
    sandbox = await workshop.make(ECHO)
    sent = bytes(range(256)) * 40_960

    async with sandbox.attach() as streams:
        writing = asyncio.create_task(streams.write(sent))
        received = await read_until(streams, lambda said: len(said) >= len(sent), seconds=30)
        await writing

    assert received == sent


async def test_output_nobody_reads_waits_in_the_sandbox(workshop: Workshop) -> None:
    sandbox = await workshop.python(
        "import sys\n"
        "sys.stdin.readline()\n"
        "for i in range(400): sys.stdout.write('x' * 65535 + '\\n')\n"
        "sys.stdout.flush()\n"
        "sys.stdin.readline()"
    )
    async with sandbox.attach() as streams:
        await streams.write(b"go\n")
        first = await streams.read()
        assert first is not None
        assert (await sandbox.state()).status == "running"
        missing = 400 * 65536 - len(first.data)

        assert len(await read_until(streams, lambda said: len(said) >= missing, seconds=30)) == missing


async def test_a_server_that_does_not_read_makes_us_wait_and_only_us(workshop: Workshop) -> None:
    deaf, lively = await asyncio.gather(workshop.python("import time; time.sleep(600)"), workshop.make(ECHO))

    async with deaf.attach() as blocked, lively.attach() as streams:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await blocked.write(b"x" * 32 * MIB)
        await streams.write(b"hello\n")
        assert await read_until(streams, lambda said: said.endswith(b"\n")) == b"hello\n"


async def test_a_paused_sandbox_says_nothing_until_it_is_resumed(workshop: Workshop) -> None:
    sandbox = await workshop.make(ECHO)
    async with sandbox.attach() as streams:
        await streams.write(b"1\n")
        await read_until(streams, lambda said: said == b"1\n")
        await sandbox.pause()
        await sandbox.pause()
        assert (await sandbox.state()).status == "paused"

        await streams.write(b"2\n")
        with pytest.raises(TimeoutError):
            await read_until(streams, lambda said: b"2" in said, seconds=0.3)
        await sandbox.resume()
        await sandbox.resume()

        assert (await sandbox.state()).status == "running"
        await read_until(streams, lambda said: said == b"2\n")


async def test_statistics_show_what_is_used(workshop: Workshop) -> None:
    sandbox = await workshop.python(
        "import sys\n"
        "held = bytearray(50_000_000)\n"
        "open('/workspace/file', 'wb').write(b'x' * 3_000_000)\n"
        "for i in range(3_000_000): pass\n"
        "print('ready', flush=True); sys.stdin.readline()"
    )
    async with sandbox.attach() as streams:
        await read_until(streams, lambda said: said == b"ready\n", seconds=20)
        stats = await sandbox.stats()

    assert stats.cpu_seconds > 0.02
    assert stats.processes >= 1
    assert stats.workspace_bytes is not None
    assert 3_000_000 <= stats.workspace_bytes < 4_000_000
    if workshop.kind != "runsc":  # gVisor's own kernel holds the memory; here it runs without cgroups
        assert 50_000_000 < stats.memory_bytes < 200_000_000


async def test_a_workspace_survives_its_sandbox_as_an_archive(workshop: Workshop) -> None:
    write = """
import os
os.makedirs('deep/er')
open('deep/er/text', 'w').write('hello')
open('run.sh', 'w').write('#!/bin/sh')
os.chmod('run.sh', 0o755)
os.symlink('deep/er/text', 'inside')
os.symlink('/etc/passwd', 'outside')
open('new\\nline \\u202e', 'w').write('odd')
open('sparse', 'wb').truncate(60_000_000)
open('closed', 'w').write('secret')
os.chmod('closed', 0)
print('written', flush=True)
input()
"""
    first = await workshop.python(write)
    async with first.attach() as streams:
        await read_until(streams, lambda said: said == b"written\n")
    archive = await exported(first)
    if workshop.kind != "runsc":  # gVisor does not tell where the holes are
        assert len(archive) < MIB, "a hole in a file is not archived as zeros"
    await first.remove()

    second = await workshop.make(ECHO)
    await second.import_workspace(pieces(archive))

    before, after = contents(archive), contents(await exported(second))
    before.pop("./closed", None)
    after.pop("./closed", None)
    assert after == before
    assert after["./deep/er/text"] == b"hello"
    assert after["./outside"] == "-> /etc/passwd"


async def exported(sandbox: Sandbox) -> bytes:
    return b"".join([piece async for piece in sandbox.export_workspace()])


async def pieces(archive: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(archive), 65_536):
        yield archive[start : start + 65_536]


def contents(archive: bytes) -> dict[str, bytes | str]:
    found: dict[str, bytes | str] = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            if member.issym():
                found[member.name] = f"-> {member.linkname}"
            elif member.isfile():
                data = tar.extractfile(member)
                assert data is not None
                found[member.name] = data.read() if member.name != "./sparse" else str(member.size)
    return found


async def test_an_archive_that_does_not_fit_is_refused(workshop: Workshop) -> None:
    sandbox = await workshop.make(ECHO, limits=replace(SandboxLimits(), workspace_bytes=2 * MIB))
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        member = tarfile.TarInfo("big")
        member.size = 8 * MIB
        tar.addfile(member, io.BytesIO(bytes(member.size)))

    with pytest.raises(ArchiveFailed):
        await sandbox.import_workspace(pieces(archive.getvalue()))

    assert (await sandbox.state()).status == "running"


async def test_what_is_no_archive_is_refused(workshop: Workshop) -> None:
    sandbox = await workshop.make(ECHO)

    with pytest.raises(ArchiveFailed):
        await sandbox.import_workspace(pieces(b"this is no archive" * 1000))


async def test_a_removed_sandbox_is_gone_and_removing_it_again_does_nothing(workshop: Workshop) -> None:
    sandbox = await workshop.make(ECHO)
    async with sandbox.attach() as streams:
        await sandbox.remove()
        assert await read_all(streams) == (b"", b"")
    await sandbox.remove()

    assert (await sandbox.state()).status == "gone"
    assert sandbox.id not in [other.id for other in await workshop.backend.find_all()]
    with pytest.raises(SandboxGone):
        async with sandbox.attach():
            pass
    with pytest.raises(SandboxGone):
        await exported(sandbox)


async def test_a_fork_bomb_is_removed_within_two_seconds(workshop: Workshop) -> None:
    sandbox = await workshop.python(
        "import os, signal\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('now', flush=True)\n"
        "while True:\n"
        "    try: os.fork()\n"
        "    except OSError: pass"
    )
    async with sandbox.attach() as streams:
        await read_until(streams, lambda said: said.startswith(b"now"), seconds=20)

    started = time.monotonic()
    await sandbox.remove()

    assert time.monotonic() - started < 2
    assert (await sandbox.state()).status == "gone"


async def test_a_paused_sandbox_can_be_removed(workshop: Workshop) -> None:
    sandbox = await workshop.make(ECHO)
    await sandbox.pause()

    await sandbox.remove()

    assert (await sandbox.state()).status == "gone"


async def test_creating_a_twin_brings_the_one_that_is_there(workshop: Workshop) -> None:
    spec = workshop.spec(ECHO, name=names.session_name(workshop.instance, "a session"))

    twins = await asyncio.gather(*(workshop.create(spec) for _ in range(8)))

    assert len({twin.id for twin in twins}) == 1
    (found,) = await workshop.backend.find_all()
    async with twins[-1].attach() as streams:
        for other in (*twins[:-1], found):
            with pytest.raises(SandboxBusy):
                async with other.attach():
                    pass
        # An attach that nobody reads would hold this up after a megabyte or two.
        writing = asyncio.create_task(streams.write(b"x" * 8 * MIB))
        await read_until(streams, lambda said: len(said) >= 8 * MIB, seconds=30)
        await writing


async def test_a_name_taken_by_another_shape_is_a_conflict_that_leaves_it_alone(workshop: Workshop) -> None:
    spec = workshop.spec(ECHO, name=names.session_name(workshop.instance, "a session"))
    sandbox = await workshop.create(spec)

    with pytest.raises(SandboxConflict):
        await workshop.create(replace(spec, limits=replace(spec.limits, processes=64)))

    assert (await sandbox.state()).status == "running"


async def test_a_name_is_free_again_after_its_sandbox_died_or_was_removed(workshop: Workshop) -> None:
    spec = workshop.spec("/bin/sh", "-c", "read wait", name=names.session_name(workshop.instance, "s"))
    first = await workshop.create(spec)
    async with first.attach() as streams:
        await streams.write(b"die\n")
        await read_all(streams)
    async with asyncio.timeout(5):
        while (await first.state()).status == "running":
            await asyncio.sleep(0)

    second = await workshop.create(spec)
    await second.remove()
    third = await workshop.create(spec)

    assert len({first.id, second.id, third.id}) == 3
    assert (await third.state()).status == "running"


async def test_every_sandbox_of_this_instance_is_found(workshop: Workshop) -> None:
    made = await asyncio.gather(*(workshop.make(ECHO) for _ in range(3)))

    found = {sandbox.id: sandbox for sandbox in await workshop.backend.find_all()}

    assert set(found) == {sandbox.id for sandbox in made}
    assert {sandbox.labels[names.INSTANCE_LABEL] for sandbox in found.values()} == {workshop.instance}


async def test_the_outside_view_holds_everything_essential(workshop: Workshop) -> None:
    sandbox = await workshop.make(ECHO)

    broken = [item for item in await sandbox.examine() if item.is_essential and not item.held]

    assert broken == []
