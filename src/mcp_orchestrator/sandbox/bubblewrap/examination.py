"""A sandbox judged from outside, by what the kernel says of its processes and its limits."""

import os

from mcp_orchestrator.sandbox.backend import MIB, SandboxLimits
from mcp_orchestrator.sandbox.bubblewrap import procfs
from mcp_orchestrator.sandbox.bubblewrap.cgroups import ControlGroup, Usage
from mcp_orchestrator.sandbox.properties import Property

LIMIT_NAMES = {"memory": "memory limit", "pids": "process limit", "cpu": "cpu limit"}

# What stands in where no control group can be had.
WITHOUT_GROUP = {
    "memory": "for each process alone, not for all together: no control group can be made here",
    "pids": "by rlimit, in a user namespace of its own",
    "cpu": "none: no control group can be made here",
}
GET_A_GROUP = "Use a container engine, or start with systemd-run --user --scope -p Delegate=yes (cgroup v2)."


def examine(init: int, limits: SandboxLimits, group: ControlGroup | None) -> list[Property]:
    """Every property that can be seen from here, of all processes in there."""
    processes = [fact for pid in procfs.members(init) if (fact := procfs.facts(pid))]
    return [
        _all("not root on the host", [(fact.uid != 0, f"uid {fact.uid}") for fact in processes]),
        # An ordinary user cannot lay down groups. There is nothing in there that they would open.
        _all(
            "no other groups on the host",
            [(set(fact.groups) <= {fact.gid}, f"groups {fact.groups or 'none'}") for fact in processes],
        )._replace(is_essential=False),
        _all("own namespaces", [_own_namespace(init, kind) for kind in procfs.NAMESPACES]),
        _all(
            "outside: no capabilities",
            [
                (
                    fact.effective_capabilities == 0,
                    f"{fact.effective_capabilities:x}" if fact.effective_capabilities else "none",
                )
                for fact in processes
            ],
        ),
        _all(
            "outside: no new privileges",
            [(fact.no_new_privileges, "set" if fact.no_new_privileges else "not set") for fact in processes],
        ),
        _all(
            "outside: system call filter",
            [
                (fact.seccomp_mode == 2, "in force" if fact.seccomp_mode == 2 else "none")
                for fact in processes
            ],
        ),
        *_limits(limits, group),
        _file_count(init, limits),
    ]


def usage(init: int) -> Usage:
    """Sums over all processes, for a sandbox without a control group. Memory shared is counted twice."""
    processes = [fact for pid in procfs.members(init) if (fact := procfs.facts(pid))]
    return Usage(
        cpu_seconds=sum(fact.cpu_seconds for fact in processes),
        memory_bytes=sum(fact.memory_bytes for fact in processes),
        processes=len(processes),
    )


def _all(name: str, seen: list[tuple[bool, str]]) -> Property:
    """Held if there is something to see and all of it is as it should be; the odd ones are named."""
    odd = sorted({text for held, text in seen if not held})
    return Property(name, bool(seen) and not odd, ", ".join(odd or sorted({text for _, text in seen})))


def _own_namespace(init: int, kind: str) -> tuple[bool, str]:
    theirs = procfs.namespace(init, kind)
    return theirs not in ("", procfs.namespace("self", kind)), kind


def _limits(limits: SandboxLimits, group: ControlGroup | None) -> list[Property]:
    wanted = group.expected(limits) if group else {}
    actual = group.limits() if group else {}
    properties = []
    for controller, name in LIMIT_NAMES.items():
        if controller not in wanted:
            properties.append(_without_group(controller, name))
            continue
        held = actual.get(controller) == wanted[controller]
        seen = f"{_plainly(controller, limits)}, by control group" if held else str(actual.get(controller))
        properties.append(Property(name, held, seen))
    return properties


def _plainly(controller: str, limits: SandboxLimits) -> str:
    words = {
        "memory": f"{limits.memory_bytes / MIB:g} MiB",
        "pids": str(limits.processes),
        "cpu": f"{limits.cpus:g}",
    }
    return words[controller]


def _without_group(controller: str, name: str) -> Property:
    held = controller == "pids"
    return Property(
        name, held, WITHOUT_GROUP[controller], is_essential=False, next_step="" if held else GET_A_GROUP
    )


def _file_count(init: int, limits: SandboxLimits) -> Property:
    try:
        files = os.statvfs(f"/proc/{init}/root/workspace").f_files
    except OSError as error:
        return Property("file count limit", False, str(error), is_essential=False)
    return Property("file count limit", files == limits.workspace_files, f"{files} files", is_essential=False)
