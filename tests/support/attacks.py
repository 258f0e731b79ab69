"""Attacks are programs run by the tool that runs programs, in a sandbox like anybody's."""

import json
from typing import Any

from mcp_orchestrator.tools.results import ToolResult
from mcp_orchestrator.tools.toolbox import Toolbox

# What most attacks need: raw system calls whose error is the answer.
_PRELUDE = """
import ctypes, errno, json, os, platform, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
NUMBERS = {'x86_64': dict(mount=165, umount2=166, pivot_root=155, chroot=161, mknod=133, unshare=272, setns=308,
    bpf=321, perf_event_open=298, add_key=248, keyctl=250, userfaultfd=323, open_by_handle_at=304, kexec_load=246,
    init_module=175, reboot=169, swapon=167, settimeofday=164, clone3=435, io_uring_setup=425, sched_setscheduler=144,
    ptrace=101, setuid=105, sethostname=170, process_vm_readv=310, fsopen=430, move_mount=429),
  'aarch64': dict(mount=40, umount2=39, pivot_root=41, chroot=51, mknod=33, unshare=97, setns=268, bpf=280,
    perf_event_open=241, add_key=217, keyctl=219, userfaultfd=282, open_by_handle_at=265, kexec_load=104,
    init_module=105, reboot=142, swapon=224, settimeofday=170, clone3=435, io_uring_setup=425,
    sched_setscheduler=119, ptrace=117, setuid=146, sethostname=161, process_vm_readv=270, fsopen=430,
    move_mount=429)}[platform.machine()]

def call(name, *arguments):
    ctypes.set_errno(0)
    answer = libc.syscall(NUMBERS[name], *arguments)
    return 'done' if answer >= 0 else errno.errorcode.get(ctypes.get_errno(), str(ctypes.get_errno()))

def attempt(action):
    try:
        return repr(action())
    except OSError as error:
        return errno.errorcode.get(error.errno, 'refused')
"""


async def shell(toolbox: Toolbox, command: str, seconds: float = 20, **arguments: Any) -> ToolResult:
    """Run a command line; the sandbox's own deadline comes before ours."""
    given = {"command": command, "timeout_seconds": seconds, **arguments}
    return await toolbox.run("execute_command", given, seconds + 10)


async def attack(toolbox: Toolbox, program: str, seconds: float = 20) -> Any:
    """Run a Python program inside and return what it left in `result`."""
    source = f"{_PRELUDE}\n{program}\nprint('RESULT' + json.dumps(result))"
    answer = await shell(toolbox, "python3 -I -", seconds, stdin=source)
    found = [line for line in answer.text.splitlines() if line.startswith("RESULT")]
    assert found, answer.text
    return json.loads(found[-1].removeprefix("RESULT"))
