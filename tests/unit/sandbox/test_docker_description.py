"""Every line of hardening, as the engine is told it and as it must answer."""

import copy
import json
from typing import Any

import pytest

from mcp_orchestrator.sandbox.backend import MIB, SandboxLimits, SandboxSpec
from mcp_orchestrator.sandbox.docker.account import deviations
from mcp_orchestrator.sandbox.docker.description import EngineTraits, container_config
from mcp_orchestrator.sandbox.docker.engine import _unenforced

SPEC = SandboxSpec(name="mcpo-x-session-1", image="sha256:abc")
LABELS = {"io.mcp-orchestrator.instance": "x"}
V1, V2 = EngineTraits(cgroup_version="1"), EngineTraits(cgroup_version="2")


def without_profile(config: dict[str, Any]) -> dict[str, Any]:
    options = config["HostConfig"]["SecurityOpt"]
    config["HostConfig"]["SecurityOpt"] = [option.split("=", 1)[0] for option in options]
    return config


def test_the_create_body_is_exactly_this() -> None:
    assert without_profile(container_config(SPEC, LABELS, V2)) == {
        "Image": "sha256:abc",
        "User": "1000:1000",
        "Hostname": "sandbox",
        "WorkingDir": "/workspace",
        "Env": [],
        "Labels": LABELS,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "OpenStdin": True,
        "StdinOnce": False,
        "Tty": False,
        "NetworkDisabled": True,
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": {
            "NetworkMode": "none",
            "IpcMode": "none",
            "ReadonlyRootfs": True,
            "Privileged": False,
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges", "seccomp"],
            "Memory": 512 * MIB,
            "MemorySwap": 512 * MIB,
            "NanoCpus": 500_000_000,
            "PidsLimit": 128,
            "OomScoreAdj": 500,
            "Ulimits": [
                {"Name": "nofile", "Soft": 1024, "Hard": 1024},
                {"Name": "core", "Soft": 0, "Hard": 0},
                {"Name": "fsize", "Soft": 128 * MIB, "Hard": 128 * MIB},
            ],
            "Tmpfs": {
                "/workspace": "rw,exec,nosuid,nodev,size=134217728,nr_inodes=16384,"
                "uid=1000,gid=1000,mode=0700",
                "/tmp": "rw,noexec,nosuid,nodev,size=67108864,nr_inodes=4096,uid=1000,gid=1000,mode=0700",
                "/dev/shm": "rw,noexec,nosuid,nodev,size=16777216,nr_inodes=4096,uid=1000,gid=1000,mode=0700",
                "/dev/mqueue": "ro,noexec,nosuid,nodev,size=4096",
            },
            "LogConfig": {"Type": "none", "Config": {}},
            "Init": True,
            "AutoRemove": False,
            "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0},
        },
    }


def test_swappiness_is_set_where_the_kernel_knows_it() -> None:
    assert container_config(SPEC, LABELS, V1)["HostConfig"]["MemorySwappiness"] == 0
    assert "MemorySwappiness" not in container_config(SPEC, LABELS, V2)["HostConfig"]


def test_a_command_replaces_the_entry_point_of_the_image() -> None:
    config = container_config(SandboxSpec(name="n", image="i", command=("server", "--flag")), LABELS)

    assert (config["Entrypoint"], config["Cmd"]) == (["server"], ["--flag"])


def options(engine: EngineTraits) -> list[str]:
    return list(container_config(SPEC, LABELS, engine)["HostConfig"]["SecurityOpt"])


def test_apparmor_is_named_only_where_the_engine_has_it() -> None:
    assert "apparmor=docker-default" in options(EngineTraits(has_apparmor=True))
    assert "apparmor=docker-default" not in options(V2)


def test_podman_gets_the_filter_as_a_file() -> None:
    assert "seccomp=/data/seccomp.json" in options(EngineTraits(seccomp_file="/data/seccomp.json"))


def test_nothing_of_the_spec_but_its_limits_image_command_and_runtime_reaches_the_engine() -> None:
    hostile = SandboxSpec(name='x", "Binds": ["/:/host"]', image="sha256:abc", limits=SandboxLimits(cpus=1))

    config = container_config(hostile, LABELS)

    assert "/host" not in json.dumps(config)


IMAGE = {"Config": {"Entrypoint": ["python3", "server"], "Env": ["LANG=C"]}}


def inspected(engine: EngineTraits = V2) -> dict[str, Any]:
    """What an obedient engine answers."""
    told = container_config(SPEC, LABELS, engine)
    defaults = {
        "MaskedPaths": ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware", "/proc/acpi"],
        "ReadonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
        "Runtime": "runc",
        "ShmSize": 67108864,
        "CpuShares": 0,
        "Binds": None,
    }
    return {
        "Image": SPEC.image,
        "Config": told | {"Entrypoint": ["python3", "server"], "Env": ["PATH=/bin", "LANG=C"]},
        "HostConfig": told["HostConfig"] | defaults,
        "Mounts": [],
    }


def test_an_obedient_engine_shows_no_deviation() -> None:
    assert all(item.held for item in deviations(SPEC, inspected(), IMAGE, V2))
    assert all(item.held for item in deviations(SPEC, inspected(V1), IMAGE, V1))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("NetworkMode", "bridge"),
        ("IpcMode", "host"),
        ("ReadonlyRootfs", False),
        ("Privileged", True),
        ("CapDrop", None),
        ("CapAdd", ["SYS_ADMIN"]),
        ("SecurityOpt", ["no-new-privileges"]),
        ("SecurityOpt", ["no-new-privileges", "seccomp=unconfined"]),
        ("Memory", 0),
        ("MemorySwap", 1024 * MIB),
        ("NanoCpus", 0),
        ("PidsLimit", None),
        ("Ulimits", None),
        ("Tmpfs", None),
        ("LogConfig", {"Type": "json-file", "Config": {}}),
        ("Init", None),
        ("AutoRemove", True),
        ("RestartPolicy", {"Name": "always"}),
        ("Binds", ["/:/host"]),
        ("Devices", [{"PathOnHost": "/dev/mem"}]),
        ("PidMode", "host"),
        ("UsernsMode", "host"),
        ("GroupAdd", ["0"]),
        ("DeviceCgroupRules", ["a *:* rwm"]),
        ("OomKillDisable", True),
        ("Sysctls", {"net.ipv4.ip_forward": "1"}),
        ("MaskedPaths", []),
        ("ReadonlyPaths", None),
        ("CgroupParent", "/somewhere"),
    ],
)
def test_a_field_that_the_engine_ignored_is_noticed(field: str, value: object) -> None:
    answer = copy.deepcopy(inspected())
    answer["HostConfig"][field] = value

    assert len(broken(answer)) == 1


def broken(answer: dict[str, Any]) -> set[str]:
    return {item.name for item in deviations(SPEC, answer, IMAGE, V2) if not item.held}


def test_one_option_or_file_system_more_than_was_told_is_noticed() -> None:
    answer = copy.deepcopy(inspected())
    answer["HostConfig"]["SecurityOpt"].append("systempaths=unconfined")
    answer["HostConfig"]["Tmpfs"]["/etc"] = "rw"

    assert broken(answer) == {"engine: SecurityOpt", "engine: Tmpfs"}


@pytest.mark.parametrize(
    ("part", "named"),
    [
        ({"User": "root"}, "user"),
        ({"Env": ["LD_PRELOAD=/x.so"]}, "no variables of ours"),
        ({"Cmd": ["--evil"]}, "program"),
        ({"Entrypoint": ["/bin/sh"]}, "program"),
        ({"Healthcheck": {"Test": ["CMD", "touch", "/workspace/x"]}}, "no health check"),
    ],
    ids=str,
)
def test_another_program_than_was_told_is_noticed(part: dict[str, Any], named: str) -> None:
    answer = inspected()
    answer["Config"] |= part

    assert broken(answer) == {f"engine: {named}"}


def test_another_image_or_a_mount_is_noticed() -> None:
    answer = inspected() | {"Image": "sha256:evil", "Mounts": [{"Type": "volume", "Destination": "/data"}]}

    assert broken(answer) == {"engine: image", "engine: no mounts"}


def test_an_engine_that_notes_limits_and_does_not_hold_them_is_noticed() -> None:
    rootless = EngineTraits(cgroup_version="2", unenforced=("memory", "cpu"))

    found = {item.name for item in deviations(SPEC, inspected(), IMAGE, rootless) if not item.held}

    assert found == {"engine: holds the limits it was told"}


@pytest.mark.parametrize(
    ("account", "expected"),
    [
        ({"CgroupDriver": "systemd", "MemoryLimit": True, "PidsLimit": True, "CpuCfsQuota": True}, ()),
        ({"CgroupDriver": "cgroupfs", "MemoryLimit": True, "PidsLimit": True, "CPUCfsQuota": True}, ()),
        ({"CgroupDriver": "systemd", "MemoryLimit": True, "PidsLimit": True}, ("cpu",)),
        (
            {"CgroupDriver": "none", "MemoryLimit": True, "PidsLimit": True, "CpuCfsQuota": True},
            ("memory", "processes", "cpu"),
        ),
        ({}, ("memory", "processes", "cpu")),
    ],
    ids=str,
)
def test_which_limits_an_engine_holds_is_read_off_its_account(
    account: dict[str, object], expected: tuple[str, ...]
) -> None:
    assert _unenforced(account) == expected
