"""The workspace server, spoken to by the official Python SDK in both eras of the protocol."""

import asyncio
import sys
from pathlib import Path

import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.client import ConnectMode
from mcp_types import CallToolResult, TextContent

SERVER = Path(__file__).parents[2] / "images" / "sandbox" / "workspace_server"
TOOLS = ["read_file", "write_file", "edit_file", "list_files", "search_files", "execute_command"]

every_era = pytest.mark.parametrize("mode", ["legacy", "auto", "2026-07-28"])


def client(workspace: Path, mode: ConnectMode) -> Client:
    arguments = ["-I", "-S", str(SERVER), "--root", str(workspace)]
    return Client(StdioServerParameters(command=sys.executable, args=arguments), mode=mode)


def text_of(result: CallToolResult) -> str:
    assert isinstance(result.content[0], TextContent)
    return result.content[0].text


@every_era
async def test_the_sdk_connects_and_sees_the_tools(tmp_path: Path, mode: ConnectMode) -> None:
    async with asyncio.timeout(20), client(tmp_path, mode) as session:
        tools = (await session.list_tools()).tools

        assert session.protocol_version == ("2025-11-25" if mode == "legacy" else "2026-07-28")
        assert [tool.name for tool in tools] == TOOLS
        assert all(tool.annotations and tool.annotations.open_world_hint is False for tool in tools)


@every_era
async def test_the_sdk_writes_reads_and_runs(tmp_path: Path, mode: ConnectMode) -> None:
    async with asyncio.timeout(20), client(tmp_path, mode) as session:
        await session.call_tool("write_file", {"path": "a/b.txt", "content": "☃\n"})
        read = await session.call_tool("read_file", {"path": "a/b.txt"})
        ran = await session.call_tool("execute_command", {"command": "cat a/b.txt; exit 4"})
        refused = await session.call_tool("read_file", {"path": "/etc/passwd"})

        assert text_of(read) == "☃\n"
        assert read.meta is not None
        assert set(read.meta["io.mcp-orchestrator/workspace"]) == {"bytes", "files"}
        assert ran.is_error
        assert "Exit code 4" in text_of(ran)
        assert refused.is_error
        with pytest.raises(MCPError, match="Unknown tool") as error:
            await session.call_tool("no_such_tool", {})
        assert error.value.error.code == -32602


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_the_facts_of_the_sandbox_come_with_the_connection(tmp_path: Path, mode: ConnectMode) -> None:
    async with asyncio.timeout(20), client(tmp_path, mode) as session:
        opening = session.session.initialize_result or session.session.discover_result

        assert opening is not None
        assert opening.meta is not None
        assert opening.meta["io.mcp-orchestrator/sandbox"]["dumpable"] is False


@every_era
async def test_progress_reaches_the_sdk_while_the_command_runs(tmp_path: Path, mode: ConnectMode) -> None:
    shown: asyncio.Queue[str] = asyncio.Queue()
    gate = tmp_path / "gate"

    async def show(progress: float, total: float | None, message: str | None) -> None:
        shown.put_nowait(message or "")

    async with asyncio.timeout(20), client(tmp_path, mode) as session, asyncio.TaskGroup() as tasks:
        # It ends only when the file appears, and that is made only after the first word was shown.
        command = {"command": "echo first; until [ -e gate ]; do sleep 0.01; done; echo last"}
        call = tasks.create_task(session.call_tool("execute_command", command, progress_callback=show))
        assert await shown.get() == "first\n"
        gate.touch()
        assert await shown.get() == "last\n"
        assert "first\nlast" in text_of(await call)


@every_era
async def test_a_cancelled_call_kills_its_command_and_the_session_goes_on(
    tmp_path: Path, mode: ConnectMode
) -> None:
    pid_file = tmp_path / "pid"
    async with asyncio.timeout(20), client(tmp_path, mode) as session:
        command = {"command": "setsid sh -c 'echo $$ > pid; exec sleep 60' & sleep 60"}
        call = asyncio.create_task(session.call_tool("execute_command", command))
        while not (pid_file.exists() and pid_file.read_text()):
            await asyncio.sleep(0)
        pid = int(pid_file.read_text())

        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

        while Path(f"/proc/{pid}").exists():
            await asyncio.sleep(0)
        assert text_of(await session.call_tool("execute_command", {"command": "echo on"})).endswith("on\n")


@every_era
async def test_calls_run_side_by_side(tmp_path: Path, mode: ConnectMode) -> None:
    async with asyncio.timeout(20), client(tmp_path, mode) as session:
        # Each waits for the file of the other: one after the other they would never end.
        first = {"command": "touch a; until [ -e b ]; do sleep 0.01; done", "timeout_seconds": 10}
        second = {"command": "touch b; until [ -e a ]; do sleep 0.01; done", "timeout_seconds": 10}
        results = await asyncio.gather(
            session.call_tool("execute_command", first), session.call_tool("execute_command", second)
        )
        assert [result.is_error for result in results] == [False, False]
