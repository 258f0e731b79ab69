"""What the bare command does until there is a page: the verdict, then a sandbox to look at."""

import shlex
import sys

from rich.console import Console

from mcp_orchestrator.cli import doctor, sandbox_run
from mcp_orchestrator.cli.doctor import OpenSandboxes

_SHOWN = (
    "echo Hello from inside a sandbox.",
    "id",
    "touch /usr/x || echo the system cannot be written to",
    "python3 -c 'import socket; socket.create_connection((\"192.0.2.1\", 80), 3)' 2>&1 | tail -1",
    "echo kept in the workspace > note; cat note; df -h /workspace | tail -1",
)


async def show(open_sandboxes: OpenSandboxes) -> int:
    """Print the doctor's verdict and, if tools can run, run a few commands in a fresh sandbox."""
    code = await doctor.show(open_sandboxes, as_json=False)
    if code:
        return code
    script = "exec 2>&1\n" + "\n".join(
        f"echo; echo {shlex.quote('$ ' + command)}; {command}" for command in _SHOWN
    )
    code = await sandbox_run.run(open_sandboxes, [script], timeout_seconds=60, tells_which=False)
    Console(highlight=False).print(
        "\nTry your own: [bold].venv/bin/mcp-orchestrator sandbox run -- ls -la /[/bold]", soft_wrap=True
    )
    sys.stdout.flush()
    return code
