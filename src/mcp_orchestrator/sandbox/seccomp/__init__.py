"""The system calls a sandbox may make, in the two forms that back ends take.

An engine takes a JSON profile and compiles it; bubblewrap takes the compiled
program. Both come from `rules`. The programs beside this file are made ahead by
`scripts/compile_seccomp.py`, so that nobody needs libseccomp to run a sandbox.
"""

import json
import platform
from functools import cache
from importlib import resources
from typing import Any

from mcp_orchestrator.sandbox.backend import BackendUnavailable
from mcp_orchestrator.sandbox.seccomp.rules import Rule, rules

# As libseccomp names them. No 32-bit or x32 companions: their calls have other numbers.
ARCHITECTURES = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}


@cache
def docker_profile() -> str:
    """The profile for `SecurityOpt: ["seccomp=<this>"]`."""
    profile = {
        "defaultAction": "SCMP_ACT_ERRNO",
        "archMap": [{"architecture": name, "subArchitectures": []} for name in ARCHITECTURES.values()],
        "syscalls": [_docker_rule(rule) for rule in rules()],
    }
    return json.dumps(profile, separators=(",", ":"))


@cache
def filter_program(machine: str = platform.machine()) -> bytes:
    """The classic BPF program for `bwrap --seccomp`.

    Raises:
        BackendUnavailable: there is none for this machine.
    """
    if machine not in ARCHITECTURES:
        known = " and ".join(ARCHITECTURES)
        raise BackendUnavailable(f"There is no system call filter for {machine}, only for {known}.")
    return (resources.files(__package__) / f"{machine}.bpf").read_bytes()


def _docker_rule(rule: Rule) -> dict[str, Any]:
    described: dict[str, Any] = {
        "names": list(rule.names),
        "action": "SCMP_ACT_ERRNO" if rule.errno else "SCMP_ACT_ALLOW",
        "args": [
            {"index": argument, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}
            for argument, value, mask in rule.conditions
        ],
    }
    if rule.errno:
        described["errnoRet"] = rule.errno
    return described
