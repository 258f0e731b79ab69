"""The toolbox against a server of the official SDK, in both eras of the protocol."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import cast

import pytest

from mcp_orchestrator.sandbox.backend import ByteStreams, Output, Sandbox
from mcp_orchestrator.tools.results import CallTimedOut, ToolOutput, ToolResult
from mcp_orchestrator.tools.toolbox import Era, Toolbox, open_toolbox

SERVER = """
import asyncio, sys
from mcp.server import MCPServer
from mcp.server.mcpserver import Context

server = MCPServer("official")

@server.tool()
def add(a: int, b: int) -> int:
    return a + b

@server.tool()
def fail() -> str:
    raise ValueError("on purpose")

@server.tool()
async def count(ctx: Context) -> str:
    for number in range(3):
        await ctx.report_progress(number, 3, f"step {number}")
    return "counted"

@server.tool()
async def wait() -> str:
    await asyncio.Event().wait()
    return "never"

@server.tool()
async def grow(ctx: Context) -> str:
    server.add_tool(lambda: "new", name="grown", description="was not there before")
    await ctx.session.send_tool_list_changed()  # to those with a handshake
    await ctx.notify_tools_changed()  # to those who listen
    return "grown"

server.run("stdio")
"""


class Pipes:
    """`ByteStreams` of a process that is trusted: the SDK is not in the sandbox image."""

    is_fresh = True

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def read(self) -> Output | None:
        assert self._process.stdout is not None
        data = await self._process.stdout.read(65_536)
        return Output("stdout", data) if data else None

    async def write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        await self._process.stdin.drain()


class TrustedProcess:
    """Just enough of a `Sandbox` to be attached to."""

    id = name = "official"

    @asynccontextmanager
    async def attach(self) -> AsyncIterator[ByteStreams]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", SERVER),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            yield Pipes(process)
        finally:
            process.kill()
            await process.wait()


@pytest.fixture(params=["auto", "handshake"])
async def toolbox(request: pytest.FixtureRequest) -> AsyncIterator[Toolbox]:
    era: Era = request.param
    ready: asyncio.Future[Toolbox] = asyncio.get_running_loop().create_future()
    done = asyncio.Event()

    async def own() -> None:
        async with open_toolbox(cast("Sandbox", TrustedProcess()), era=era) as opened:
            ready.set_result(opened)
            await done.wait()

    # One task opens and closes the connection; the test, another one, only uses it.
    owner = asyncio.create_task(own())
    yield await ready
    done.set()
    await owner


async def test_tools_are_listed_and_called(toolbox: Toolbox) -> None:
    assert {tool.name for tool in toolbox.catalogue.tools} == {"add", "fail", "count", "wait", "grow"}
    assert (await toolbox.run("add", {"a": 2, "b": 3}, 5)).text == "5"
    assert (await toolbox.run("fail", {}, 5)).is_error
    assert (await toolbox.run("add", {"a": "two"}, 5)).is_error
    assert (await toolbox.run("missing", {}, 5)).is_error


async def test_many_calls_at_once_get_their_own_answers(toolbox: Toolbox) -> None:
    sums = await asyncio.gather(*(toolbox.run("add", {"a": n, "b": n}, 10) for n in range(50)))

    assert [answer.text for answer in sums] == [str(2 * n) for n in range(50)]


async def test_progress_comes_in_order_and_before_the_result(toolbox: Toolbox) -> None:
    async with aclosing(toolbox.call("count", {}, 5)) as updates:
        *steps, result = [update async for update in updates]

    assert [step.text for step in steps if isinstance(step, ToolOutput)] == ["step 0", "step 1", "step 2"]
    assert isinstance(result, ToolResult)
    assert result.text == "counted"


async def test_a_call_that_is_given_up_leaves_the_others_alone(toolbox: Toolbox) -> None:
    with pytest.raises(CallTimedOut):
        await toolbox.run("wait", {}, 0.1)

    assert (await toolbox.run("add", {"a": 1, "b": 1}, 5)).text == "2"


async def test_a_change_of_the_tools_is_noticed(toolbox: Toolbox) -> None:
    async with aclosing(toolbox.changes()) as changes:
        coming = asyncio.ensure_future(anext(changes))
        await toolbox.run("grow", {}, 5)
        changed = await asyncio.wait_for(coming, 10)

    assert "grown" in {tool.name for tool in changed.tools}
