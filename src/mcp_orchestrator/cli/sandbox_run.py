"""`sandbox run`: one command in a fresh sandbox, its output as it comes, its exit code as ours."""

import math
import re
import shlex
import sys
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any, Final, TextIO

from mcp_orchestrator.cli.doctor import OpenSandboxes
from mcp_orchestrator.errors import OrchestratorError
from mcp_orchestrator.sandbox import names
from mcp_orchestrator.tools.proof import open_proven_toolbox
from mcp_orchestrator.tools.results import ToolOutput, ToolResult
from mcp_orchestrator.tools.toolbox import Toolbox

# The sandbox keeps its own time; ours only has to notice when it does not.
_GRACE_SECONDS: Final = 10
_INPUT_CHARACTERS: Final = 1_000_000
_TIMED_OUT: Final = 124
# What a terminal would obey instead of showing it.
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


class BadCommand(OrchestratorError):
    """What was asked for cannot be run."""


async def run(
    open_sandboxes: OpenSandboxes,
    command: Sequence[str],
    timeout_seconds: float,
    *,
    takes_input: bool = False,
    tells_which: bool = True,
) -> int:
    """Run `command`; one word is taken as a line for the shell, several as a program and its arguments."""
    arguments = _arguments(command, timeout_seconds, takes_input=takes_input)
    async with open_sandboxes() as sandboxes:
        if tells_which and sandboxes.passed_over:
            sys.stderr.write(
                f"mcp-orchestrator: isolated by {sandboxes.backend.name}. {sandboxes.passed_over}\n"
            )
        spec = await sandboxes.spec(names.pool_name(sandboxes.instance))
        sandbox = await sandboxes.create(spec)
        try:
            async with open_proven_toolbox(sandbox, spec) as (toolbox, _):
                return await _stream(toolbox, arguments)
        finally:
            await sandbox.remove()


def _arguments(command: Sequence[str], timeout_seconds: float, *, takes_input: bool) -> dict[str, Any]:
    line = command[0] if len(command) == 1 else shlex.join(command)
    if not line.strip():
        raise BadCommand("There is no command to run.")
    if not math.isfinite(timeout_seconds):
        raise BadCommand("--timeout takes a number of seconds from 1 to 3600.")
    try:
        line.encode()
    except UnicodeEncodeError:
        raise BadCommand("The command is not valid UTF-8.") from None
    arguments: dict[str, Any] = {"command": line, "timeout_seconds": timeout_seconds}
    if takes_input:
        arguments["stdin"] = sys.stdin.read(_INPUT_CHARACTERS)
    return arguments


async def _stream(toolbox: Toolbox, arguments: dict[str, Any]) -> int:
    seconds = arguments["timeout_seconds"] + _GRACE_SECONDS
    async with aclosing(toolbox.call("execute_command", arguments, seconds)) as updates:
        async for update in updates:
            match update:
                case ToolOutput():
                    _show(update.text, sys.stderr if update.stream == "stderr" else sys.stdout)
                case ToolResult():
                    return _exit_code(update)
    return 1


def _show(text: str, target: TextIO) -> None:
    if target.isatty():
        text = _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
    target.write(text)
    target.flush()


def _exit_code(result: ToolResult) -> int:
    code = (result.structured or {}).get("exitCode", 1)
    first_line, *_ = [*result.text.splitlines(), ""]
    if code is None:
        _show(first_line.replace("timeout_seconds", "--timeout") + "\n", sys.stderr)
        return _TIMED_OUT
    if code > 128 or result.structured is None:
        # Killed, perhaps for its memory, or never started: the server's sentence says which.
        _show(first_line + "\n", sys.stderr)
    return int(code)
