"""The MCP server inside every sandbox: files and commands of one workspace, over standard input and output.

Run as `python3 -I -S <this directory> [--root DIR] [--facts]`. Standard library only, one thread, few
imports: it starts once for every session and must be ready in milliseconds and idle in a few megabytes.
"""

from __future__ import annotations

import os
import sys

import kernel
from loop import Loop
from paths import Workspace
from protocol import Protocol
from tools import Toolbox
from wire import Inbox, Outbox

_ROOT = "/workspace"


def main(arguments: list[str]) -> None:
    kernel.set_dumpable(False)  # first of all: no tool may ever reach into this process
    root = arguments[arguments.index("--root") + 1] if "--root" in arguments else _ROOT
    if "--facts" in arguments:
        _print_facts()
        return
    kernel.become_subreaper()
    requests, answers = _take_standard_streams()
    _serve(requests, answers, Workspace(root))


def _serve(requests: int, answers: int, workspace: Workspace) -> None:
    """Serve until the client closes its end; then stop every command that still runs."""
    loop = Loop()
    outbox = Outbox(answers, loop)
    toolbox = Toolbox(loop, workspace)
    protocol = Protocol(outbox, toolbox, _facts)
    Inbox(requests, loop, outbox, protocol.receive).open()
    loop.run()
    toolbox.stop()
    outbox.flush_last()


def _take_standard_streams() -> tuple[int, int]:
    """Return private copies of stdin and stdout, and put harmless files in their place.

    So neither a stray print nor a child can ever write into the protocol.
    """
    requests, answers = os.dup(0), os.dup(1)
    nothing = os.open("/dev/null", os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    return requests, answers


def _facts() -> dict[str, object]:
    from facts import facts

    return facts()


def _print_facts() -> None:
    from jsontext import dumps

    sys.stdout.write(dumps(_facts()).decode() + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
