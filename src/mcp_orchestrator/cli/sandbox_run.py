"""`sandbox run`: one command in a fresh sandbox, its output as it comes, its exit code as ours."""

import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing

from mcp_orchestrator.sandbox import names
from mcp_orchestrator.sandbox.factory import SandboxFactory
from mcp_orchestrator.tools.proof import open_proven_toolbox
from mcp_orchestrator.tools.toolbox import Toolbox, ToolOutput, ToolResult

# The sandbox keeps its own time; ours only has to notice when it does not.
_GRACE_SECONDS = 10


async def run(
    open_sandboxes: Callable[[], AbstractAsyncContextManager[SandboxFactory]],
    command: Sequence[str],
    timeout_seconds: float,
) -> int:
    """Run `command`; one word is taken as a line for the shell, several as a program and its arguments."""
    line = command[0] if len(command) == 1 else shlex.join(command)
    async with open_sandboxes() as sandboxes:
        spec = await sandboxes.spec(names.pool_name(sandboxes.instance))
        sandbox = await sandboxes.create(spec)
        try:
            async with open_proven_toolbox(sandbox, spec) as (toolbox, _):
                return await _stream(toolbox, line, timeout_seconds)
        finally:
            await sandbox.remove()


async def _stream(toolbox: Toolbox, line: str, timeout_seconds: float) -> int:
    arguments = {"command": line, "timeout_seconds": timeout_seconds}
    has_shown = False
    async with aclosing(
        toolbox.call("execute_command", arguments, timeout_seconds + _GRACE_SECONDS)
    ) as updates:
        async for update in updates:
            match update:
                case ToolOutput():
                    has_shown = has_shown or bool(update.text)
                    _show(update)
                case ToolResult():
                    return _exit_code(update, has_shown=has_shown)
    return 1


def _show(output: ToolOutput) -> None:
    target = sys.stderr if output.stream == "stderr" else sys.stdout
    target.write(output.text)
    target.flush()


def _exit_code(result: ToolResult, *, has_shown: bool) -> int:
    code = (result.structured or {}).get("exitCode")
    if isinstance(code, int):
        return code
    # Killed, timed out or never started: the server's sentence says which.
    if not has_shown or result.is_error:
        sys.stderr.write(result.text + "\n")
    return 1
