"""The sandbox examined from inside: what this process may do and what it can see, not what was configured.

The client compares these facts with what it asked the engine for, and lets no tool run when they differ.
"""

from __future__ import annotations

import os

from kernel import has_no_new_privileges, is_dumpable, landlock_version
from refusals import refused_calls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = dict[str, Any]

# Looked at, not used: the sandbox's own.
_MAYBE_WRITABLE = (
    "/", "/usr", "/usr/local", "/etc", "/opt", "/var", "/var/tmp", "/home", "/root", "/run", "/srv", "/mnt",
    "/proc/sys/kernel", "/sys", "/dev", "/workspace", "/tmp", "/dev/shm",
)  # fmt: skip
_FILE_SYSTEMS = ("/workspace", "/tmp", "/dev/shm")
_UNLIMITED = 1 << 62  # version 1 of the control groups writes "no limit" as a number about this large

_seen: Json = {}


def facts() -> Json:
    """Return what is seen from here, examined once in the life of the server."""
    if not _seen:
        _seen.update(_examine())
    return _seen


def _examine() -> Json:
    status = _status()
    return {
        "uid": os.getuid(),
        "gid": os.getgid(),
        "groups": sorted(os.getgroups()),
        "capabilities": _capabilities(status),
        "no_new_privileges": has_no_new_privileges(),
        "seccomp": int(status.get("Seccomp", "0")),
        "dumpable": is_dumpable(),
        "landlock": landlock_version(),
        "interfaces": _interfaces(),
        "routes": _routes(),
        "writable": sorted(path for path in _MAYBE_WRITABLE if _is_writable(path)),
        "file_systems": _file_systems(),
        "limits": _limits(),
        "rlimits": _rlimits(),
        "refused": refused_calls(),
        "processes": sum(name.isdigit() for name in os.listdir("/proc")),
        "environment": sorted(set(os.environ) - {"LC_CTYPE"}),  # Python adds that one itself
        "kernel": _read("/proc/version")[:100].strip(),
        "container_pid": os.getpid(),
    }


def _status() -> dict[str, str]:
    pairs = (line.partition(":") for line in _read("/proc/self/status").splitlines())
    return {name: value.strip() for name, _, value in pairs}


def _capabilities(status: dict[str, str]) -> dict[str, int]:
    names = {"effective": "CapEff", "permitted": "CapPrm", "bounding": "CapBnd", "ambient": "CapAmb"}
    names["inheritable"] = "CapInh"
    return {name: int(status.get(field, "0"), 16) for name, field in names.items()}


def _interfaces() -> list[str]:
    lines = _read("/proc/net/dev").splitlines()[2:]
    return sorted(line.partition(":")[0].strip() for line in lines)


def _routes() -> int:
    """Count the routes that leave by another interface than the loopback."""
    old = [line.split()[0] for line in _read("/proc/net/route").splitlines()[1:] if line.strip()]
    new = [line.split()[-1] for line in _read("/proc/net/ipv6_route").splitlines() if line.strip()]
    return sum(interface != "lo" for interface in old + new)


def _is_writable(directory: str) -> bool:
    path = f"{directory}/.mcp-probe-{os.getpid()}"
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    except OSError:
        return False
    os.unlink(path)
    return True


def _file_systems() -> dict[str, Json | None]:
    types = {}
    for line in _read("/proc/self/mounts").splitlines():
        fields = line.split()
        types[fields[1]] = fields[2]  # a later mount covers an earlier one
    return {path: _file_system(path, types) for path in _FILE_SYSTEMS}


def _file_system(path: str, types: dict[str, str]) -> Json | None:
    """Describe the file system that holds the path: mounted there, or at the nearest directory above."""
    try:
        size = os.statvfs(path)
    except OSError:
        return None
    mount = path
    while mount not in types and mount != "/":
        mount = os.path.dirname(mount)
    return {"type": types.get(mount, "?"), "bytes": size.f_blocks * size.f_frsize, "files": size.f_files}


def _limits() -> dict[str, float | None]:
    if os.path.exists("/sys/fs/cgroup/cgroup.controllers"):
        quota, _, period = _read("/sys/fs/cgroup/cpu.max").strip().partition(" ")
        swap = _limit("/sys/fs/cgroup/memory.swap.max")
        memory, processes = _limit("/sys/fs/cgroup/memory.max"), _limit("/sys/fs/cgroup/pids.max")
    else:
        memory = _limit("/sys/fs/cgroup/memory/memory.limit_in_bytes")
        both = _limit("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes")
        swap = both - memory if both is not None and memory is not None else None
        processes = _limit("/sys/fs/cgroup/pids/pids.max")
        quota = _read("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").strip()
        period = _read("/sys/fs/cgroup/cpu/cpu.cfs_period_us").strip()
    cpus = int(quota) / int(period) if quota.isdigit() and period.isdigit() else None
    return {"memory_bytes": memory, "swap_bytes": swap, "processes": processes, "cpus": cpus}


def _limit(path: str) -> int | None:
    text = _read(path).strip()
    return int(text) if text.isdigit() and int(text) < _UNLIMITED else None


def _rlimits() -> dict[str, int | None]:
    import resource

    numbers = {
        "open_files": resource.RLIMIT_NOFILE,
        "core_bytes": resource.RLIMIT_CORE,
        "file_bytes": resource.RLIMIT_FSIZE,
        "processes": resource.RLIMIT_NPROC,
        "address_space_bytes": resource.RLIMIT_AS,
    }
    hard = {name: resource.getrlimit(number)[1] for name, number in numbers.items()}
    return {name: None if value == resource.RLIM_INFINITY else value for name, value in hard.items()}


def _read(path: str) -> str:
    """Return the text of the file, or nothing when it cannot be read from here."""
    try:
        with open(path, "rb") as file:
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""
