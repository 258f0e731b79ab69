"""`make bench`: our budgets against the bare engine, interleaved in one run, as ratios of medians."""

import asyncio
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from aiodocker import Docker
from rich.console import Console
from rich.table import Table

from bench import bare as engine_alone
from mcp_orchestrator.sandbox import names
from mcp_orchestrator.sandbox.backend import MIB, Sandbox, SandboxSpec
from mcp_orchestrator.sandbox.docker import engine as engines
from mcp_orchestrator.sandbox.docker.backend import DockerBackend
from mcp_orchestrator.sandbox.docker.description import container_config
from mcp_orchestrator.sandbox.docker.stream import Endpoint
from mcp_orchestrator.tools.proof import open_proven_toolbox
from scripts.build_image import build_sandbox_image
from tests.support.engine import EngineUnavailable, available_engine

INSTANCE = "bench"
NOWHERE = Path("/nonexistent")  # only Podman needs files of ours
ROUNDS = 25
CALLS = 400
IDLE = 10
CALL = ("execute_command", {"command": "echo hi"})
LIST = ("list_files", {"path": "."})


class Row(NamedTuple):
    """One figure, its yardstick and the budget between them."""

    name: str
    ours: str
    yardstick: str
    relation: str
    budget: str
    is_kept: bool


async def measure(host: str) -> list[Row]:
    """All figures of one run."""
    backend = await DockerBackend.connect(INSTANCE, {"DOCKER_HOST": host}, NOWHERE)
    async with Docker(url=host) as docker:
        bench = Bench(backend, docker, Endpoint(host), await build_sandbox_image(docker))
        try:
            return [*await bench.cold_starts(), await bench.warm_calls(), *await bench.idle_memory()]
        finally:
            for sandbox in await backend.find_all():
                await sandbox.remove()
            await backend.close()


class Bench:
    """Ours and the bare engine side by side."""

    def __init__(self, backend: DockerBackend, docker: Docker, endpoint: Endpoint, image: str) -> None:
        self._backend = backend
        self._docker = docker
        self._endpoint = endpoint
        self._image = image

    def _spec(self) -> SandboxSpec:
        return SandboxSpec(name=names.pool_name(INSTANCE), image=self._image)

    async def _config(self, spec: SandboxSpec) -> dict[str, Any]:
        return container_config(
            spec, names.labels(INSTANCE, spec), await engines.traits(self._docker, NOWHERE)
        )

    async def cold_starts(self) -> list[Row]:
        """From nothing to the first result of a tool, three ways in turn."""
        taken: dict[str, list[float]] = {"start": [], "bare": [], "ours": []}
        for number in range(ROUNDS + 2):
            for name, way in (
                ("start", self._plain_start),
                ("bare", self._plain_result),
                ("ours", self._our_result),
            ):
                seconds = await way()
                if number >= 2:  # the first rounds warm the caches of all three
                    taken[name].append(seconds)
        start, plain, ours = (statistics.median(taken[name]) for name in ("start", "bare", "ours"))
        ratio = ours / plain
        return [
            Row("bare engine: create and start", "", ms(start), "", "", True),
            Row(
                "cold start to first tool result",
                ms(ours),
                ms(plain),
                f"{ratio:.2f} x",
                "1.15 x",
                ratio <= 1.15,
            ),
        ]

    async def _plain_start(self) -> float:
        spec = self._spec()
        config = await self._config(spec)
        return await timed(lambda: engine_alone.started(self._docker, config, spec.name), self._remove_all)

    async def _plain_result(self) -> float:
        spec = self._spec()
        config = await self._config(spec)

        async def work() -> None:
            stream = await engine_alone.attached(self._docker, self._endpoint, config, spec.name)
            await engine_alone.asked(stream, 1, "server/discover")
            await engine_alone.asked(stream, 2, "tools/list")
            await engine_alone.asked(stream, 3, "tools/call", name=CALL[0], arguments=CALL[1])
            await stream.close()

        return await timed(work, self._remove_all)

    async def _our_result(self) -> float:
        spec = self._spec()

        async def work() -> None:
            sandbox = await self._backend.create(spec)
            async with open_proven_toolbox(sandbox, spec) as (toolbox, _):
                await toolbox.run(*CALL, timeout_seconds=10)

        return await timed(work, self._remove_all)

    async def warm_calls(self) -> Row:
        """One more call against the same line sent and read back with nothing around it."""
        ours: list[float] = []
        plain: list[float] = []
        async with self._sandbox() as (sandbox, spec):
            for _ in range(8):
                async with open_proven_toolbox(sandbox, spec) as (toolbox, _):
                    ask = partial(toolbox.run, *LIST, timeout_seconds=10)
                    ours += [await timed(ask) for _ in range(CALLS // 8)]
                async with sandbox.attach() as streams:
                    ask_bare = partial(
                        engine_alone.asked, streams, 7, "tools/call", name=LIST[0], arguments=LIST[1]
                    )
                    plain += [await timed(ask_bare) for _ in range(CALLS // 8)]
        added = (statistics.median(ours) - statistics.median(plain)) * 1000
        return Row(
            "one more tool call",
            ms(statistics.median(ours)),
            ms(statistics.median(plain)),
            f"+{added:.2f} ms",
            "+1 ms",
            added <= 1,
        )

    async def idle_memory(self) -> list[Row]:
        """What one waiting sandbox takes, against a container in which an interpreter waits."""
        ours = await self._memory([await self._ready() for _ in range(IDLE)])
        plain = await self._memory([await self._waiting_interpreter() for _ in range(IDLE)])
        figures = ("idle sandbox, as its cgroup counts", "idle sandbox with the engine's shim")
        return [
            Row(name, mib(mine), mib(bare), f"{mine / bare:.2f} x", "10 MiB", mine <= 10 * MIB)
            for name, mine, bare in zip(figures, ours, plain, strict=True)
        ]

    async def _memory(self, sandboxes: list[Sandbox]) -> tuple[float, float]:
        """For each: what its cgroup counts; what its processes take together with the engine's helper."""
        inside = statistics.median([(await sandbox.stats()).memory_bytes for sandbox in sandboxes])
        total = sum(pss(process) for sandbox in sandboxes for process in processes(sandbox.id)) / len(
            sandboxes
        )
        await self._remove_all()
        return inside, total

    async def _waiting_interpreter(self) -> Sandbox:
        command = ("python3", "-I", "-S", "-c", "print('ready', flush=True); input()")
        sandbox = await self._backend.create(replace(self._spec(), command=command))
        async with sandbox.attach() as streams:
            await streams.read()
        return sandbox

    async def _ready(self) -> Sandbox:
        spec = self._spec()
        sandbox = await self._backend.create(spec)
        async with open_proven_toolbox(sandbox, spec):
            return sandbox

    @asynccontextmanager
    async def _sandbox(self) -> AsyncIterator[tuple[Sandbox, SandboxSpec]]:
        spec = self._spec()
        sandbox = await self._backend.create(spec)
        try:
            yield sandbox, spec
        finally:
            await sandbox.remove()

    async def _remove_all(self) -> None:
        for sandbox in await self._backend.find_all():
            await sandbox.remove()


async def timed(
    work: Callable[[], Coroutine[Any, Any, Any]],
    afterwards: Callable[[], Coroutine[Any, Any, None]] | None = None,
) -> float:
    started = time.perf_counter()
    await work()
    seconds = time.perf_counter() - started
    if afterwards:
        await afterwards()
    return seconds


def processes(container: str) -> list[psutil.Process]:
    """The engine's helper for a container, and what runs in it."""
    running = psutil.process_iter(["cmdline"])
    shims = [process for process in running if container in (process.info["cmdline"] or [])]
    return [process for shim in shims for process in (shim, *shim.children(recursive=True))]


def pss(process: psutil.Process) -> int:
    """The memory a process takes, what it shares with others divided among them."""
    try:
        return int(process.memory_full_info().pss)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0


def ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


def mib(count: float) -> str:
    return f"{count / MIB:.1f} MiB"


def main() -> int:
    console = Console(highlight=False)
    try:
        with available_engine() as host:
            rows = asyncio.run(measure(host))
    except EngineUnavailable as error:
        console.print(f"No figures: {error}")
        return 1
    table = Table(
        title=f"Medians of {ROUNDS} rounds, interleaved ({Path('/proc/loadavg').read_text().split()[0]} load)"
    )
    for heading in ("", "ours", "bare", "relation", "budget", ""):
        table.add_column(heading, justify="left" if not heading else "right")
    for row in rows:
        verdict = ("kept" if row.is_kept else "[bold]over[/bold]") if row.budget else ""
        table.add_row(*row[:5], verdict)
    console.print(table)
    return 0 if all(row.is_kept for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
