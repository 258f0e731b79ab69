"""What the inside of a sandbox must look like, fact by fact."""

import copy
from typing import Any

import pytest

from mcp_orchestrator.sandbox.backend import MIB, SandboxSpec
from mcp_orchestrator.sandbox.probe import SandboxUnsound, inside, require_sound

SPEC = SandboxSpec(name="n", image="i")
SOUND: dict[str, Any] = {
    "uid": 1000,
    "gid": 1000,
    "groups": [1000],
    "capabilities": dict.fromkeys(("effective", "permitted", "bounding", "ambient", "inheritable"), 0),
    "no_new_privileges": True,
    "seccomp": 2,
    "dumpable": False,
    "landlock": 7,
    "interfaces": ["lo"],
    "routes": 0,
    "writable": ["/dev/shm", "/tmp", "/workspace"],
    "file_systems": {
        "/workspace": {"type": "tmpfs", "bytes": 128 * MIB, "files": 16384},
        "/tmp": {"type": "tmpfs", "bytes": 64 * MIB, "files": 4096},
        "/dev/shm": {"type": "tmpfs", "bytes": 16 * MIB, "files": 4096},
    },
    "limits": {"memory_bytes": 512 * MIB, "swap_bytes": 0, "processes": 128, "cpus": 0.5},
    "rlimits": {"open_files": 1024, "core_bytes": 0, "file_bytes": 128 * MIB},
    "refused": {"io_uring": True, "user_namespace": True},
    "kernel": "Linux version 6.1",
}


def broken(facts: dict[str, Any], spec: SandboxSpec = SPEC) -> set[str]:
    return {item.name for item in inside(facts, spec) if not item.held}


def test_a_sound_sandbox_holds_everything() -> None:
    assert broken(SOUND) == set()
    require_sound("n", inside(SOUND, SPEC))


@pytest.mark.parametrize(
    ("fact", "value", "named"),
    [
        ("uid", 0, "ordinary user"),
        ("groups", [1000, 0], "ordinary user"),
        ("capabilities", SOUND["capabilities"] | {"bounding": 1}, "no capabilities"),
        ("no_new_privileges", False, "no new privileges"),
        ("dumpable", True, "server closed to its children"),
        ("interfaces", ["lo", "eth0"], "no network"),
        ("routes", 1, "no network"),
        ("writable", ["/", "/workspace"], "read-only system"),
        ("writable", ["/tmp"], "writable workspace"),
        ("file_systems", SOUND["file_systems"] | {"/workspace": None}, "/workspace bounded"),
        (
            "file_systems",
            SOUND["file_systems"] | {"/tmp": {"type": "ext4", "bytes": 10**12, "files": 1}},
            "/tmp bounded",
        ),
        ("limits", SOUND["limits"] | {"memory_bytes": 10**12}, "memory limit"),
        ("limits", SOUND["limits"] | {"processes": 10_000}, "process limit"),
        ("limits", SOUND["limits"] | {"cpus": 2.0}, "cpu limit"),
        ("rlimits", SOUND["rlimits"] | {"open_files": 2048}, "open file limit"),
        ("rlimits", SOUND["rlimits"] | {"open_files": None}, "open file limit"),
        ("rlimits", SOUND["rlimits"] | {"core_bytes": None}, "no core dumps"),
        ("seccomp", 0, "system call filter"),
        ("refused", {"io_uring": False}, "dangerous system calls refused"),
    ],
    ids=str,
)
def test_each_fact_that_is_off_is_named(fact: str, value: object, named: str) -> None:
    facts = copy.deepcopy(SOUND) | {fact: value}

    assert broken(facts) == {named}
    with pytest.raises(SandboxUnsound, match=named):
        require_sound("n", inside(facts, SPEC))


@pytest.mark.parametrize("missing", [key for key in SOUND if key != "kernel"])
def test_a_fact_that_is_missing_counts_as_not_held(missing: str) -> None:
    facts = {key: value for key, value in SOUND.items() if key != missing}

    assert broken(facts) == {"inside view"}


def test_a_server_without_facts_is_not_trusted() -> None:
    assert broken({}) == {"inside view"}


def test_groups_that_the_host_could_not_drop_have_no_name_inside_and_are_harmless() -> None:
    assert broken(SOUND | {"groups": [65_534, 65_534]}) == set()


def test_under_gvisor_the_filter_is_gvisor_itself() -> None:
    kernel = "Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016"
    facts = SOUND | {"seccomp": 0, "refused": {"io_uring": False}, "kernel": kernel}

    assert broken(facts, SandboxSpec(name="n", image="i", runtime="runsc")) == set()
