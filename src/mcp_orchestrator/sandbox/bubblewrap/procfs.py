"""What can be seen of a sandbox's processes from outside, in /proc."""

import contextlib
import os
import signal
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
NAMESPACES = ("user", "pid", "net", "ipc", "uts", "mnt", "cgroup")


class ProcessFacts(NamedTuple):
    """One process as its status says."""

    pid: int
    state: str
    is_told_to_stop: bool
    uid: int
    gid: int
    groups: tuple[int, ...]
    effective_capabilities: int
    no_new_privileges: bool
    seccomp_mode: int
    memory_bytes: int
    cpu_seconds: float


def namespace(pid: int | str, kind: str) -> str:
    """The name of a namespace, or nothing when the process is gone or not ours to see."""
    try:
        return str((PROC / str(pid) / "ns" / kind).readlink())
    except OSError:
        return ""


def members(init: int) -> list[int]:
    """Every process in the pid namespace of this one."""
    inside = namespace(init, "pid")
    return [pid for pid in _numbers() if inside and namespace(pid, "pid") == inside]


def facts(pid: int) -> ProcessFacts | None:
    """None when the process is gone."""
    try:
        lines = (PROC / str(pid) / "status").read_text().splitlines()
        # The name in parentheses may itself hold any character.
        stat = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    status = {key: value.split() for key, _, value in (line.partition(":") for line in lines)}
    return ProcessFacts(
        pid=pid,
        state=status["State"][0],
        is_told_to_stop=bool(int(status["ShdPnd"][0], 16) & (1 << (signal.SIGSTOP - 1))),
        uid=int(status["Uid"][0]),
        gid=int(status["Gid"][0]),
        groups=tuple(int(number) for number in status["Groups"]),
        effective_capabilities=int(status["CapEff"][0], 16),
        no_new_privileges=status["NoNewPrivs"] == ["1"],
        seccomp_mode=int(status["Seccomp"][0]),
        memory_bytes=int(status.get("VmRSS", ["0"])[0]) * 1024,
        cpu_seconds=(int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK"),
    )


def marked(mark: str) -> list[int]:
    """Every process that has this among its arguments."""
    return [pid for pid in _numbers() if mark.encode() in _arguments(pid)]


def signal_all(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def is_moving(pid: int) -> bool:
    """Whether it could still do something: neither dead, nor stopped, nor about to be.

    A process that waits in the kernel stops when it comes out, which may be never: after a
    `vfork` it waits for its child, and that one has stopped.
    """
    found = facts(pid)
    return found is not None and not found.is_told_to_stop and found.state not in ("T", "t", "Z", "X")


def _numbers() -> list[int]:
    return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]


def _arguments(pid: int) -> list[bytes]:
    try:
        return (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return []
