"""Whether a sandbox is what it should be, from what its own server saw inside. Pure.

The facts come from the workspace server of our own image. A hostile image could
lie, which is why the back end's account from outside is judged as well.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from mcp_orchestrator.sandbox.backend import MIB, SANDBOX_UID, SandboxError, SandboxSpec
from mcp_orchestrator.sandbox.properties import Property

_WRITABLE: Final = {"/workspace", "/tmp", "/dev/shm"}  # noqa: S108
_UNMAPPED: Final = 65_534
# What gVisor's own kernel calls itself.
_GVISOR_KERNELS: Final = ("gvisor", "gVisor", "Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016")


class SandboxUnsound(SandboxError):
    """A promised property does not hold, so nothing may run in this sandbox."""

    def __init__(self, name: str, broken: list[Property]) -> None:
        listed = "; ".join(f"{item.name} (seen: {item.seen})" for item in broken)
        super().__init__(f"{name} does not hold what was promised, so no tool runs in it: {listed}.")
        self.broken = broken


def require_sound(name: str, properties: Iterable[Property]) -> None:
    """Raise unless every essential property is held.

    Raises:
        SandboxUnsound: with the ones that are not.
    """
    if broken := [item for item in properties if item.is_essential and not item.held]:
        raise SandboxUnsound(name, broken)


def inside(facts: Mapping[str, Any], spec: SandboxSpec) -> list[Property]:
    """The properties that can be seen from inside. A fact that is missing is not held."""
    try:
        return [
            *_identity(facts),
            *_network(facts),
            *_files(facts, spec),
            *_limits(facts, spec),
            *_system_calls(facts, spec),
        ]
    except (KeyError, TypeError, AttributeError) as error:
        return [Property("inside view", held=False, seen=f"incomplete: {error!r}")]


def _identity(facts: Mapping[str, Any]) -> list[Property]:
    who = f"{facts['uid']}:{facts['gid']}, groups {facts['groups']}"
    # A group of the host that has no name inside. An ordinary user cannot drop it, and it opens nothing.
    harmless = {SANDBOX_UID, _UNMAPPED}
    is_ordinary = facts["uid"] == facts["gid"] == SANDBOX_UID and set(facts["groups"]) <= harmless
    capabilities = facts["capabilities"]
    return [
        Property("ordinary user", is_ordinary, who),
        Property(
            "no capabilities", not any(capabilities.values()), _names(k for k, v in capabilities.items() if v)
        ),
        Property(
            "no new privileges",
            facts["no_new_privileges"] is True,
            _either(facts["no_new_privileges"], "set", "not set"),
        ),
        Property(
            "server closed to its children",
            facts["dumpable"] is False,
            _either(facts["dumpable"], "open", "closed"),
        ),
        Property(
            "commands cut off from the server",
            facts["landlock"] > 0,
            f"Landlock {facts['landlock']}",
            is_essential=False,
            next_step="" if facts["landlock"] > 0 else "Linux 5.13 and later can do it.",
        ),
    ]


def _network(facts: Mapping[str, Any]) -> list[Property]:
    others = [name for name in facts["interfaces"] if name != "lo"]
    seen = f"interfaces beside lo: {_names(others)}; routes: {facts['routes']}"
    return [Property("no network", not others and facts["routes"] == 0, seen)]


def _files(facts: Mapping[str, Any], spec: SandboxSpec) -> list[Property]:
    elsewhere = set(facts["writable"]) - _WRITABLE
    limits = spec.limits
    bounds = {"/workspace": limits.workspace_bytes, "/tmp": limits.tmp_bytes, "/dev/shm": limits.shm_bytes}  # noqa: S108
    return [
        Property("read-only system", not elsewhere, f"writable elsewhere: {_names(sorted(elsewhere))}"),
        Property("writable workspace", "/workspace" in facts["writable"], _names(facts["writable"])),
        *(_bounded(path, facts["file_systems"].get(path), most) for path, most in bounds.items()),
    ]


def _bounded(path: str, system: Mapping[str, Any] | None, most: int) -> Property:
    if system is None:
        return Property(f"{path} bounded", path != "/workspace", "absent")
    # File systems round up to whole pages.
    held = 0 < system["bytes"] <= most + 4096
    return Property(f"{path} bounded", held, f"{system['bytes'] / MIB:.0f} MiB of {system['type']}")


def _limits(facts: Mapping[str, Any], spec: SandboxSpec) -> list[Property]:
    limits, seen, resources = spec.limits, facts["limits"], facts["rlimits"]
    return [
        *_at_most("memory limit", seen["memory_bytes"], limits.memory_bytes, MIB, " MiB"),
        *_at_most("no swap", seen["swap_bytes"], 0, MIB, " MiB"),
        *_at_most("process limit", seen["processes"], limits.processes),
        *_at_most("cpu limit", seen["cpus"], limits.cpus),
        Property(
            "open file limit",
            (resources["open_files"] or 0) in range(1, limits.open_files + 1),
            str(resources["open_files"]),
        ),
        Property("no core dumps", resources["core_bytes"] == 0, f"{resources['core_bytes']} bytes"),
    ]


def _at_most(name: str, seen: float | None, most: float, unit: int = 1, word: str = "") -> list[Property]:
    """Limits that cannot be seen from inside are the outside view's to judge."""
    if seen is None:
        return []
    return [Property(name, seen <= most, f"{seen / unit:g}{word}")]


def _system_calls(facts: Mapping[str, Any], spec: SandboxSpec) -> list[Property]:
    if spec.runtime.startswith("runsc"):
        # Whatever a program calls there is answered by gVisor itself and never reaches the host's kernel.
        return [
            Property("system calls kept from the host", held=True, seen=f"gVisor, {facts['kernel'][:21]}")
        ]
    allowed = [name for name, refused in sorted(facts["refused"].items()) if not refused]
    return [
        Property(
            "system call filter", facts["seccomp"] == 2, _either(facts["seccomp"] == 2, "in force", "none")
        ),
        Property("dangerous system calls refused", not allowed, f"allowed: {_names(allowed)}"),
    ]


def _either(fact: bool, yes: str, no: str) -> str:
    return yes if fact else no


def _names(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
