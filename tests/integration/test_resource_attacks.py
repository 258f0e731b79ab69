"""Everything that can be exhausted, exhausted from inside. The numbers are those of the threat catalogue."""

import asyncio
import shutil
import time

import pytest

from mcp_orchestrator.sandbox.properties import Property
from mcp_orchestrator.tools.results import ToolsLost
from tests.support.attacks import attack, shell
from tests.support.landlock import keeps_signals_in
from tests.support.workshop import Workshop

FORK_BOMB = "python3 -c '\nimport os\nwhile True:\n  try: os.fork()\n  except OSError: pass'"


async def limit_holds(workshop: Workshop, name: str) -> bool:
    """Whether this machine can hold that limit at all: `doctor` says so, and so do we."""
    properties: list[Property] = await workshop.made[-1].examine()
    return all(item.held for item in properties if item.name == name)


def skip_under_gvisor(workshop: Workshop, why: str) -> None:
    if workshop.kind == "runsc":
        pytest.skip(f"gVisor: {why}")


async def test_r01_a_fork_bomb_is_capped_and_ends_with_its_call(workshop: Workshop) -> None:
    skip_under_gvisor(workshop, "a fork bomb can take this sandbox down, and only this one.")
    async with workshop.toolbox() as toolbox:
        result = await shell(toolbox, FORK_BOMB, seconds=2)
        after = await shell(toolbox, "echo alive", seconds=20)

    assert result.is_error or "timed out" in result.text.lower()
    assert "alive" in after.text


async def test_r02_a_memory_bomb_in_a_command_leaves_the_server_alive(workshop: Workshop) -> None:
    async with workshop.toolbox() as toolbox:
        if workshop.kind != "docker" and not await limit_holds(workshop, "memory limit"):
            pytest.skip("No memory limit over all processes holds here: no writable cgroup.")
        skip_under_gvisor(workshop, "the memory of its own kernel counts, which is not the child's alone.")
        started = time.monotonic()
        result = await shell(
            toolbox, "python3 -c 'x = bytearray(2_000_000_000); x[::4096] = b\"1\" * len(x[::4096])'", 15
        )
        took = time.monotonic() - started
        after = await shell(toolbox, "echo alive")

    assert result.is_error or "signal" in result.text or "MemoryError" in result.text
    assert took < 15
    assert "alive" in after.text


async def test_r04_and_r05_a_full_workspace_is_an_error_and_nothing_more(workshop: Workshop) -> None:
    free_before = shutil.disk_usage("/").free
    async with workshop.toolbox() as toolbox:
        filled = await shell(
            toolbox, "dd if=/dev/zero of=/workspace/big bs=1M 2>&1; rm -f /workspace/big", 60
        )
        files = await attack(
            toolbox,
            "import itertools\n"
            "try:\n"
            "    for n in itertools.islice(itertools.count(), 40_000): open(f'/workspace/f{n}', 'w').close()\n"
            "    result = 'no limit'\n"
            "except OSError as error: result = errno.errorcode[error.errno]",
            seconds=120,
        )
        after = await shell(
            toolbox, "rm -rf /workspace/f*; find /workspace -name 'f*' -delete; echo alive", 60
        )

    assert any(words in filled.text for words in ("No space left", "File too large", "File size limit"))
    if workshop.kind != "runsc":  # gVisor counts no files, and its own memory bounds them
        assert files == "ENOSPC"
    assert "alive" in after.text
    assert free_before - shutil.disk_usage("/").free < 100_000_000


async def test_r06_the_other_writable_places_are_bounded_too(workshop: Workshop) -> None:
    async with workshop.toolbox() as toolbox:
        seen = await attack(
            toolbox,
            "def fill(path):\n"
            "    total = 0\n"
            "    with open(path, 'wb', buffering=0) as f:\n"
            "        while total < 300_000_000:\n"
            "            total += f.write(bytes(1_000_000))\n"
            "    return total\n"
            "result = {}\n"
            "for path in ('/tmp/x', '/dev/shm/x'):\n"
            "    result[path] = attempt(lambda: fill(path))\n"
            "    os.path.exists(path) and os.unlink(path)",
            seconds=60,
        )

    assert set(seen.values()) <= {"ENOSPC", "EFBIG", "ENOENT", "EROFS"}


async def test_r08_a_gigabyte_on_stderr_of_a_command_is_cut(workshop: Workshop) -> None:
    async with workshop.toolbox() as toolbox:
        result = await shell(toolbox, "head -c 300000000 /dev/zero | tr '\\0' x >&2; echo done", 60)
        after = await shell(toolbox, "echo alive")

    assert len(result.text) < 300_000
    assert "done" in result.text
    assert "alive" in after.text


async def test_r15_a_daemon_does_not_outlive_its_call(workshop: Workshop) -> None:
    daemon = (
        "python3 -c 'import os,time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        time.sleep(600)'"
    )
    skip_under_gvisor(workshop, "daemons are not handed to the server; they end with the session.")
    async with workshop.toolbox() as toolbox:
        await shell(toolbox, f"{daemon} & (setsid sleep 601 &) ; sleep 0.3; echo started")
        left = await attack(
            toolbox,
            "result = [open(f'/proc/{p}/cmdline').read() for p in os.listdir('/proc') if p.isdigit()]\n"
            "result = [c for c in result if 'sleep' in c and 'RESULT' not in c]",
        )

    assert left == []


async def test_r16_zombies_are_reaped(workshop: Workshop) -> None:
    skip_under_gvisor(workshop, "orphans are not handed to the server; they end with the session.")
    async with workshop.toolbox() as toolbox:
        for _ in range(2):
            await shell(toolbox, "for i in $(seq 100); do (true &) ; done")
        zombies = await attack(
            toolbox,
            "result = [p for p in os.listdir('/proc') if p.isdigit() and\n"
            "  ') Z ' in (lambda: open(f'/proc/{p}/stat').read())()]",
        )
        after = await shell(toolbox, "echo alive")

    assert zombies == []
    assert "alive" in after.text


async def test_r21_a_sparse_giant_and_a_file_above_the_limit_are_refused(workshop: Workshop) -> None:
    async with workshop.toolbox() as toolbox:
        seen = await attack(
            toolbox,
            "import signal\n"
            "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
            "f = open('/workspace/x', 'wb')\n"
            "result = [attempt(lambda: f.truncate(32 << 40)), attempt(lambda: f.truncate((128 << 20) + 1))]",
        )

    assert set(seen) <= {"EFBIG", "EINVAL"}


async def test_f13_a_command_cannot_kill_the_server_or_at_least_no_other(workshop: Workshop) -> None:
    async def attempted_murder() -> str:
        async with workshop.toolbox() as toolbox:
            await shell(toolbox, "kill -9 -1; kill -9 $PPID 1; sleep 1")
            return (await shell(toolbox, "echo survived")).text

    async with workshop.toolbox() as other:
        if workshop.kind != "runsc" and keeps_signals_in():
            assert "survived" in await attempted_murder()
        else:
            with pytest.raises(ToolsLost):
                await attempted_murder()
        assert "alive" in (await shell(other, "echo alive")).text


@pytest.mark.parametrize(
    "torture",
    [
        FORK_BOMB,
        "python3 -c 'while True: pass'",
        "dd if=/dev/zero of=/workspace/x bs=1M; sleep 5",
        "yes flood | head -c 200000000 >&2",
        "kill -STOP $PPID; sleep 5",
    ],
    ids=["fork bomb", "cpu", "disk", "flood", "freeze"],
)
async def test_a_misbehaving_sandbox_does_not_slow_another_or_us(workshop: Workshop, torture: str) -> None:
    async def latencies(seconds: float) -> list[float]:
        taken: list[float] = []
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            started = time.monotonic()
            await calm.run("list_files", {"path": "."}, 10)
            taken.append(time.monotonic() - started)
        return sorted(taken)

    async with workshop.toolbox() as calm, workshop.toolbox() as wild:
        await calm.run("list_files", {"path": "."}, 10)
        misbehaving = asyncio.create_task(shell(wild, torture, seconds=2))
        meanwhile = await latencies(1.5)
        misbehaving.cancel()
        await asyncio.gather(misbehaving, return_exceptions=True)

    # Not a benchmark: on two noisy cores this only tells starved from served.
    assert len(meanwhile) > 20
    assert meanwhile[len(meanwhile) // 2] < 0.1
