"""Sandboxes made by bubblewrap on this machine: what only this back end has to prove."""

import asyncio
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from mcp_orchestrator.sandbox.backend import (
    MIB,
    ArchiveFailed,
    BackendUnavailable,
    ByteStreams,
    ImageMissing,
    SandboxBusy,
    SandboxConflict,
    SandboxFailed,
    SandboxGone,
    SandboxLimits,
    SandboxSpec,
)
from mcp_orchestrator.sandbox.bubblewrap import program
from mcp_orchestrator.sandbox.bubblewrap.backend import BubblewrapBackend
from mcp_orchestrator.sandbox.bubblewrap.claims import Claim, Remains
from mcp_orchestrator.sandbox.bubblewrap.sandbox import BubblewrapSandbox
from mcp_orchestrator.sandbox.names import session_name

is_root = os.geteuid() == 0
needs_root = pytest.mark.skipif(not is_root, reason="only root gives each sandbox another user")


@pytest.fixture
async def backend(instance: str, tmp_path: Path) -> AsyncIterator[BubblewrapBackend]:
    try:
        made = await BubblewrapBackend.connect(instance, tmp_path / "run")
    except BackendUnavailable as error:
        pytest.skip(f"bubblewrap does not work here: {error}")
    yield made
    await made.close()
    assert list((tmp_path / "run").iterdir()) == []
    assert leftover_groups(instance) == []


@pytest.fixture
def spec(backend: BubblewrapBackend, instance: str) -> SandboxSpec:
    image = backend._programs.identity
    return SandboxSpec(session_name(instance, "a session"), image, command=("/bin/sh",))


async def test_nothing_of_our_environment_reaches_the_sandbox(
    backend: BubblewrapBackend, spec: SandboxSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "very-secret")
    sandbox = await backend.create(spec)

    first = await run(sandbox, "cat /proc/1/environ")
    seen = await run(sandbox, "cat /proc/*/environ /proc/*/cmdline | tr '\\0' '\\n'; env")

    assert first == ""
    assert "very-secret" not in seen
    assert "SOME_API_KEY" not in seen


async def test_no_descriptor_but_the_three_streams_is_open_inside(
    backend: BubblewrapBackend, spec: SandboxSpec
) -> None:
    with Path("/etc/hostname").open() as held:
        os.set_inheritable(held.fileno(), True)
        sandbox = await backend.create(replace(spec, command=("/bin/ls", "/proc/self/fd")))
    async with sandbox.attach() as streams:
        # The last one is the directory that is listed.
        assert await read_until(streams, b"3\n") == b"0\n1\n2\n3\n"


@needs_root
async def test_started_by_root_it_is_a_user_of_its_own_that_exists_nowhere(
    backend: BubblewrapBackend, spec: SandboxSpec
) -> None:
    one = await backend.create(spec)
    other = await backend.create(replace(spec, name=f"{spec.name}-2"))

    uids = [psutil.Process(sandbox._init).uids() for sandbox in (one, other)]

    assert len({uid.real for uid in uids}) == 2
    assert all(0x7000_0000 <= uid.real < 0x7100_0000 and uid.real == uid.saved for uid in uids)
    assert psutil.Process(one._process.pid).uids() == uids[0], "not even bwrap itself is root"
    assert "Groups:\t\n" in Path(f"/proc/{one._init}/status").read_text().replace(" \n", "\n")


async def test_the_outside_view_finds_every_essential_property_held(
    backend: BubblewrapBackend, spec: SandboxSpec
) -> None:
    properties = await (await backend.create(spec)).examine()

    assert [item for item in properties if item.is_essential and not item.held] == []
    assert {"not root on the host", "own namespaces", "memory limit", "process limit"} <= {
        item.name for item in properties
    }


@pytest.mark.parametrize(
    "path",
    [
        *("/x", "/etc/x", "/usr/x", "/dev/x", "/opt/mcp/workspace_server/x"),
        *("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger"),
    ],
)
async def test_a_place_that_is_not_the_workspace_cannot_be_written(
    backend: BubblewrapBackend, spec: SandboxSpec, path: str
) -> None:
    sandbox = await backend.create(spec)
    answer = await run(sandbox, f"( : > {path} ) 2>&1 || echo refused")
    assert answer.endswith("refused\n")


async def test_what_is_first_in_the_sandbox_cannot_be_changed_through_its_proc(
    backend: BubblewrapBackend, spec: SandboxSpec
) -> None:
    sandbox = await backend.create(spec)
    answer = await run(sandbox, "chmod 777 /proc/1/exe 2>&1; (: >> /proc/1/exe) 2>&1 || echo refused")
    assert "not permitted" in answer
    assert answer.endswith("refused\n")


async def test_no_host_path_but_the_system_is_mounted(backend: BubblewrapBackend, spec: SandboxSpec) -> None:
    sandbox = await backend.create(spec)
    mounts = [line.split() for line in (await run(sandbox, "cat /proc/self/mountinfo")).splitlines()]

    shown = {fields[4] for fields in mounts}
    system = {"/", "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt/python"}
    own = {"/proc", "/dev", "/dev/pts", "/dev/shm", "/tmp", "/workspace"}
    devices = {f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty")}
    covered = {f"/proc/{name}" for name in ("sys", "sysrq-trigger", "irq", "bus")}
    assert shown <= system | own | devices | covered | {"/etc/ld.so.cache", "/etc/alternatives"}
    writable = {fields[4] for fields in mounts if "rw" in fields[5].split(",")}
    assert writable <= {"/proc", "/dev/pts", "/dev/shm", "/tmp", "/workspace"} | devices


async def test_nested_namespaces_and_other_networks_are_out_of_reach(
    backend: BubblewrapBackend, spec: SandboxSpec
) -> None:
    sandbox = await backend.create(spec)
    answer = await run(
        sandbox,
        "unshare --user true 2>&1 || echo no user namespace;"
        "cut -d: -f1 /proc/net/dev | tail -n +3; cat /proc/sys/kernel/hostname; grep Cap /proc/self/status",
    )
    assert "no user namespace\n" in answer
    assert [line.strip() for line in answer.splitlines()[2:4]] == ["lo", "sandbox"]
    assert {line.split()[1] for line in answer.splitlines()[4:]} == {"0" * 16}


async def test_the_workspace_server_answers_from_where_it_is_promised_to_be(
    backend: BubblewrapBackend, spec: SandboxSpec
) -> None:
    sandbox = await backend.create(replace(spec, command=()))
    client = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    }
    request = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client}

    async with asyncio.timeout(10), sandbox.attach() as streams:
        await streams.write(json.dumps(request).encode() + b"\n")
        answer = json.loads(await read_until(streams, b"\n"))

    assert answer["id"] == 1
    assert "result" in answer


async def test_a_name_is_given_once(backend: BubblewrapBackend, spec: SandboxSpec) -> None:
    first, second = await asyncio.gather(backend.create(spec), backend.create(spec))

    assert first is second
    assert await backend.find_all() == [first]
    with pytest.raises(SandboxConflict):
        await backend.create(replace(spec, limits=SandboxLimits(processes=64)))


async def test_a_name_that_another_process_holds_is_refused_until_that_one_dies(
    backend: BubblewrapBackend, spec: SandboxSpec, tmp_path: Path
) -> None:
    async with other_process(tmp_path / "run", spec) as other:
        with pytest.raises(SandboxConflict):
            await backend.create(spec)
        assert await backend.find_all() == []

        init = other.info["init"]
        other.kill()
        await wait_until(lambda: not psutil.pid_exists(init))

    assert await run(await backend.create(spec), "echo mine") == "mine\n"


async def test_a_sandbox_dies_when_its_maker_is_killed_and_the_next_start_cleans_up(
    backend: BubblewrapBackend, spec: SandboxSpec, tmp_path: Path
) -> None:
    async with other_process(tmp_path / "run", spec) as other:
        inside = psutil.Process(other.info["init"]).children(recursive=True)
        other.kill()
        await wait_until(lambda: not psutil.pid_exists(other.info["init"]))

    assert inside
    assert not any(process.is_running() for process in inside)
    assert [path.stem for path in (tmp_path / "run").iterdir()] == [spec.name]

    assert await backend.find_all() == []
    assert list((tmp_path / "run").iterdir()) == []
    assert leftover_groups(spec.name) == []


async def test_what_a_maker_left_that_died_while_making_is_found_by_its_mark(
    backend: BubblewrapBackend, spec: SandboxSpec, tmp_path: Path
) -> None:
    """bwrap's inner half waits for ever when its outer half dies at the wrong moment."""
    left = await asyncio.create_subprocess_exec(
        "/bin/sh", "-c", "read -r _", "the-mark", stdin=subprocess.PIPE
    )
    claim = Claim.take(tmp_path / "run", spec.name)
    claim.note(Remains(mark="the-mark"))
    os.close(claim._descriptor)

    await backend.find_all()

    async with asyncio.timeout(5):
        assert await left.wait() == -signal.SIGKILL


async def test_a_server_that_ends_at_once_is_a_sandbox_that_stopped(
    backend: BubblewrapBackend, spec: SandboxSpec
) -> None:
    for _ in range(10):
        sandbox = await backend.create(replace(spec, command=("/bin/true",)))
        await wait_until_stopped(sandbox)
        assert (await sandbox.state()).exit_code == 0


async def test_a_dead_sandbox_is_made_anew(backend: BubblewrapBackend, spec: SandboxSpec) -> None:
    first = await backend.create(replace(spec, command=("/bin/sh", "-c", "exit 3")))
    await wait_until_stopped(first)
    assert (await first.state()).exit_code == 3

    second = await backend.create(spec)

    assert second.id != first.id
    assert (await first.state()).status == "gone"


async def test_a_failing_bwrap_is_told_in_its_own_words_and_leaves_nothing(
    backend: BubblewrapBackend, spec: SandboxSpec, tmp_path: Path
) -> None:
    host = replace(backend._programs.host, binds={"/usr": "/nonexistent"})
    backend._programs = replace(backend._programs, host=host)

    with pytest.raises(SandboxFailed, match="/nonexistent"):
        await backend.create(spec)

    assert list((tmp_path / "run").iterdir()) == []
    assert leftover_groups(spec.name) == []


async def test_a_cancelled_creation_leaves_nothing(
    backend: BubblewrapBackend, spec: SandboxSpec, tmp_path: Path
) -> None:
    before, children = psutil.Process().num_fds(), psutil.Process().children()
    for pause in (0.0, 0.001, 0.003, 0.006, 0.009):
        making = asyncio.create_task(backend.create(spec))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(making), pause)
        making.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await (await making).remove()

        assert list((tmp_path / "run").iterdir()) == []
        assert leftover_groups(spec.name) == []
    assert psutil.Process().num_fds() <= before
    assert psutil.Process().children() == children


async def test_other_images_and_runtimes_are_refused(backend: BubblewrapBackend, spec: SandboxSpec) -> None:
    with pytest.raises(ImageMissing):
        await backend.resolve("some/other:image")
    with pytest.raises(SandboxFailed):
        await backend.create(replace(spec, image="some/other:image"))
    with pytest.raises(SandboxFailed):
        await backend.create(replace(spec, runtime="runsc"))
    with pytest.raises(SandboxFailed):
        await backend.create(replace(spec, name="../../escape"))


async def test_the_streams_have_one_holder_and_outlive_him(
    backend: BubblewrapBackend, spec: SandboxSpec
) -> None:
    sandbox = await backend.create(replace(spec, command=("/bin/cat",)))
    async with sandbox.attach() as streams:
        assert streams.is_fresh
        with pytest.raises(SandboxBusy):
            async with sandbox.attach():
                pass
    async with asyncio.timeout(5), sandbox.attach() as streams:
        assert not streams.is_fresh
        await streams.write(b"still there\n")
        assert await read_until(streams, b"\n") == b"still there\n"
        await sandbox.remove()
        assert await streams.read() is None
        with pytest.raises(SandboxGone):
            await streams.write(b"too late")


async def test_a_flood_on_both_streams_costs_no_memory_and_starves_neither(
    backend: BubblewrapBackend, spec: SandboxSpec
) -> None:
    flood = "head -c 200000000 /dev/zero >&2 & head -c 200000000 /dev/zero & wait"
    sandbox = await backend.create(replace(spec, command=("/bin/sh", "-c", flood)))
    before = psutil.Process().memory_info().rss
    counts = {"stdout": 0, "stderr": 0}

    async with asyncio.timeout(30), sandbox.attach() as streams:
        while (output := await streams.read()) is not None:
            counts[output.source] += len(output.data)

    assert counts == {"stdout": 200_000_000, "stderr": 200_000_000}
    assert psutil.Process().memory_info().rss - before < 16 * MIB


async def test_a_server_that_does_not_read_only_makes_its_writer_wait(
    backend: BubblewrapBackend, spec: SandboxSpec
) -> None:
    sandbox = await backend.create(replace(spec, command=("/bin/sleep", "1000")))
    async with sandbox.attach() as streams:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(streams.write(bytes(64 * MIB)), 0.3)
        writing = asyncio.create_task(streams.write(bytes(MIB)))
        await asyncio.sleep(0)
        await sandbox.remove()
        with pytest.raises(SandboxGone):
            await writing


async def test_a_fork_bomb_is_capped_leaves_the_files_in_reach_and_is_removed_in_two_seconds(
    backend: BubblewrapBackend, spec: SandboxSpec
) -> None:
    bomb = "import os\nwhile True:\n  try: os.fork()\n  except OSError: os.write(1, b'x')"
    sandbox = await backend.create(replace(spec, command=(backend._programs.host.python, "-c", bomb)))
    async with sandbox.attach() as streams, asyncio.timeout(10):
        await read_until(streams, b"x" * 100)
    assert 100 < (await sandbox.stats()).processes <= spec.limits.processes + 1
    assert await exported(sandbox)

    started = time.monotonic()
    await sandbox.remove()

    assert time.monotonic() - started < 2


async def test_files_are_counted(backend: BubblewrapBackend, spec: SandboxSpec) -> None:
    limits = SandboxLimits(workspace_files=100)
    sandbox = await backend.create(replace(spec, limits=limits))
    answer = await run(sandbox, "i=0; while ( : > f$i ) 2>&1; do i=$((i+1)); done; echo $i")
    assert "No space left" in answer
    assert int(answer.split()[-1]) < 100


async def test_memory_is_bounded_for_a_child_and_the_server_survives(
    backend: BubblewrapBackend, spec: SandboxSpec
) -> None:
    sandbox = await backend.create(spec)
    answer = await run(
        sandbox, f"{backend._programs.host.python} -c 'x = bytearray(600 * 2**20)' 2>/dev/null; echo $?"
    )
    assert answer in ("137\n", "1\n")
    if "memory" in backend._groups.controllers:
        assert (await sandbox.state()).out_of_memory


async def test_a_paused_sandbox_does_nothing_until_it_is_resumed(
    backend: BubblewrapBackend, spec: SandboxSpec
) -> None:
    ticking = "while :; do echo tick; sleep 0.01; done"
    sandbox = await backend.create(replace(spec, command=("/bin/sh", "-c", ticking)))
    async with asyncio.timeout(10), sandbox.attach() as streams:
        await read_until(streams, b"tick")
        await sandbox.pause()
        await sandbox.pause()
        assert (await sandbox.state()).status == "paused"
        while await is_readable(streams):
            pass  # what it had written before
        await sandbox.resume()
        await sandbox.resume()
        await read_until(streams, b"tick")
    await sandbox.pause()
    await sandbox.remove()


async def test_a_workspace_comes_back_as_it_was(backend: BubblewrapBackend, spec: SandboxSpec) -> None:
    one = await backend.create(spec)
    await run(one, "mkdir d; echo text > d/f; ln -s /etc/shadow l; truncate -s 100M big; chmod 700 d")
    archive = await exported(one)
    assert len(archive) < MIB, "a hole costs nothing"

    other = await backend.create(replace(spec, name=f"{spec.name}-2"))
    await other.import_workspace(pieces(archive))

    answer = await run(other, "cat d/f; readlink l; stat -c %s big; stat -c '%a %U' d")
    assert answer == "text\n/etc/shadow\n104857600\n700 sandbox\n"


async def test_a_file_nobody_may_read_keeps_no_other_from_being_exported(
    backend: BubblewrapBackend, spec: SandboxSpec
) -> None:
    sandbox = await backend.create(spec)
    await run(sandbox, "echo a > a; echo b > b; chmod 0 a; mkdir c; chmod 0 c")
    with tarfile.open(fileobj=io.BytesIO(await exported(sandbox))) as archive:
        assert "./b" in archive.getnames()


async def test_an_archive_cannot_reach_outside_nor_fill_more_than_the_workspace(
    backend: BubblewrapBackend, spec: SandboxSpec
) -> None:
    sandbox = await backend.create(replace(spec, limits=SandboxLimits(workspace_bytes=MIB)))
    with pytest.raises(ArchiveFailed):
        await sandbox.import_workspace(pieces(b"no archive at all" * 1000))
    with pytest.raises(ArchiveFailed):
        await sandbox.import_workspace(pieces(tar_of({"big": bytes(4 * MIB)})))
    with contextlib.suppress(ArchiveFailed):
        await sandbox.import_workspace(pieces(tar_of({"../../usr/evil": b"x", "/etc/evil": b"x"})))
    assert await run(sandbox, "ls /usr/evil /etc/evil 2>/dev/null; echo end") == "end\n"


async def test_the_archive_program_is_as_caged_as_the_server(
    backend: BubblewrapBackend, spec: SandboxSpec
) -> None:
    sandbox = await backend.create(spec)
    before = (await sandbox.stats()).processes
    status = "grep -hE '^(Cap|NoNewPrivs|Seccomp:|Groups)' /proc/self/status"
    look = f"read -r _; id -u; pwd; {status}; ls /proc/self/fd; env"
    async with sandbox._inside(("/bin/sh", "-c", look)) as process:
        await wait_until_counted(sandbox, before + 1)
        await process.streams.write(b"\n")
        said = b"".join([chunk async for chunk in sandbox._output_of(process, {0})]).decode()

    uid, directory, *lines = said.splitlines()
    assert (uid, directory) == ("1000", "/")
    # What an ordinary user cannot lay down has no name in there.
    assert set(lines[0].split()[1:]) <= {"1000", "65534"}
    assert {line.split()[1] for line in lines if line.startswith("Cap")} == {"0" * 16}
    assert "NoNewPrivs:\t1" in lines
    assert "Seccomp:\t2" in lines
    assert [line for line in lines if line.isdigit()] == ["0", "1", "2", "3"]
    assert {line.split("=")[0] for line in lines if "=" in line} == {"LANG", "PWD"}


async def test_a_gone_sandbox_has_nothing_to_export(backend: BubblewrapBackend, spec: SandboxSpec) -> None:
    sandbox = await backend.create(spec)
    await sandbox.remove()
    await sandbox.remove()
    with pytest.raises(SandboxGone):
        await exported(sandbox)
    with pytest.raises(SandboxGone):
        async with sandbox.attach():
            pass
    assert (await sandbox.state()).status == "gone"


async def test_an_export_that_is_given_up_ends_its_program(
    backend: BubblewrapBackend, spec: SandboxSpec
) -> None:
    sandbox = await backend.create(spec)
    await run(sandbox, "head -c 50000000 /dev/urandom > big")
    children = psutil.Process().children()
    async with contextlib.aclosing(sandbox.export_workspace()) as archive:
        assert await anext(archive)
    assert psutil.Process().children() == children


async def test_the_bwrap_that_comes_with_us_does_as_well(
    backend: BubblewrapBackend, spec: SandboxSpec
) -> None:
    directory, command = program._bundled_bwrap()
    host = replace(backend._programs.host, bwrap_directory=directory, bwrap=command)
    backend._programs = replace(backend._programs, host=host)
    sandbox = await backend.create(spec)

    assert [item for item in await sandbox.examine() if item.is_essential and not item.held] == []
    assert await run(sandbox, "cat /proc/1/environ") == ""
    # Not a file of ours that could be written through this link.
    assert "ld-linux" in await run(sandbox, "readlink /proc/1/exe")


async def test_no_socket_of_another_family_can_be_made(backend: BubblewrapBackend, spec: SandboxSpec) -> None:
    program = """
import socket
for family in (socket.AF_INET, socket.AF_NETLINK, socket.AF_VSOCK, socket.AF_ALG, socket.AF_PACKET):
    try:
        socket.socket(family).close()
        print("open")
    except OSError as error:
        print(error.errno)
"""
    sandbox = await backend.create(spec)
    assert await run(sandbox, f"{backend._programs.host.python} -c '{program}'") == "open\n1\n1\n1\n1\n"


async def run(sandbox: BubblewrapSandbox, script: str) -> str:
    """What a script prints in a sandbox whose server is a shell."""
    marker = b"end-of-script"
    async with asyncio.timeout(20), sandbox.attach() as streams:
        await streams.write(f"{{ {script}\n}} </dev/null; echo {marker.decode()}\n".encode())
        said = await read_until(streams, marker + b"\n")
    return said.removesuffix(marker + b"\n").decode()


async def read_until(streams: ByteStreams, end: bytes) -> bytes:
    said = b""
    while end not in said:
        output = await streams.read()
        assert output is not None, said
        said += output.data
    return said


async def is_readable(streams: ByteStreams) -> bool:
    try:
        async with asyncio.timeout(0.2):
            return await streams.read() is not None
    except TimeoutError:
        return False


async def exported(sandbox: BubblewrapSandbox) -> bytes:
    return b"".join([chunk async for chunk in sandbox.export_workspace()])


async def pieces(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), 100_000):
        yield data[start : start + 100_000]


def tar_of(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def leftover_groups(part: str) -> list[Path]:
    top = Path("/sys/fs/cgroup")
    return [path for path in top.rglob(f"*{part}*") if path.is_dir()] if top.exists() else []


async def wait_until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not is_true():
            await asyncio.sleep(0.01)


async def wait_until_stopped(sandbox: BubblewrapSandbox) -> None:
    async with asyncio.timeout(5):
        while (await sandbox.state()).status == "running":
            await asyncio.sleep(0.01)


async def wait_until_counted(sandbox: BubblewrapSandbox, processes: int) -> None:
    async with asyncio.timeout(5):
        while (await sandbox.stats()).processes < processes:
            await asyncio.sleep(0.01)


class Other:
    """Another process of ours that holds a sandbox until it is killed."""

    PROGRAM = """
import asyncio, json, sys
from pathlib import Path
from mcp_orchestrator.sandbox.backend import SandboxSpec
from mcp_orchestrator.sandbox.bubblewrap.backend import BubblewrapBackend

async def main(directory, name):
    backend = await BubblewrapBackend.connect("test", Path(directory))
    command = ("/bin/sh", "-c", "sleep 1000 & wait")
    sandbox = await backend.create(SandboxSpec(name, await backend.resolve(""), command))
    print(json.dumps({"init": sandbox._init}), flush=True)
    await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""

    def __init__(self, process: asyncio.subprocess.Process, info: dict[str, int]) -> None:
        self.process = process
        self.info = info

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)


@contextlib.asynccontextmanager
async def other_process(directory: Path, spec: SandboxSpec) -> AsyncIterator[Other]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", Other.PROGRAM, str(directory), spec.name), stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(20):
            info = json.loads(await process.stdout.readline())
        yield Other(process, info)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
