"""What the engine is told about a sandbox, and whether it did as told. Pure: no engine needed.

Every line of hardening is in `container_config` and nowhere else. `deviations`
reads the engine's own account of a container against it: an engine, or a proxy
before it, that ignores a field is common, and must be noticed.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from mcp_orchestrator.sandbox.backend import SANDBOX_UID, SandboxLimits, SandboxSpec
from mcp_orchestrator.sandbox.properties import Property
from mcp_orchestrator.sandbox.seccomp import docker_profile

USER = f"{SANDBOX_UID}:{SANDBOX_UID}"
NANO = 1_000_000_000


class EngineTraits(NamedTuple):
    """What of an engine changes how a container must be described to it."""

    cgroup_version: str = "2"
    has_apparmor: bool = False
    # Podman differs: it takes the name of a file where Docker takes the profile itself, refuses
    # options of a tmpfs that it does not know, and asks for more processes than some hosts allow.
    is_podman: bool = False
    seccomp_file: str = ""


def container_config(
    spec: SandboxSpec, labels: Mapping[str, str], engine: EngineTraits = EngineTraits()
) -> dict[str, Any]:
    """The body of the engine's create call for one sandbox."""
    config: dict[str, Any] = {
        "Image": spec.image,
        "User": USER,
        "Hostname": "sandbox",
        "WorkingDir": "/workspace",
        "Env": [],
        "Labels": dict(labels),
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "OpenStdin": True,
        # Stdin stays open when we detach: a restart of ours must find the server alive.
        "StdinOnce": False,
        "Tty": False,
        # Beside the mode "none" below: the engine then builds no network at all, which halves the start.
        "NetworkDisabled": True,
        # An image may name a check that the engine would run inside, unasked.
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": host_config(spec, engine),
    }
    if spec.command:
        # Not an empty entry point: Podman takes that for the image's own.
        config |= {"Entrypoint": [spec.command[0]], "Cmd": list(spec.command[1:])}
    return config


def host_config(spec: SandboxSpec, engine: EngineTraits = EngineTraits()) -> dict[str, Any]:
    """The part of it that isolates and limits."""
    limits = spec.limits
    config: dict[str, Any] = {
        "NetworkMode": "none",
        # No /dev/shm of the engine's: it would have no limit on files. Ours is below.
        "IpcMode": "none",
        "ReadonlyRootfs": True,
        "Privileged": False,
        "CapDrop": ["ALL"],
        "SecurityOpt": security_options(engine),
        "Memory": limits.memory_bytes,
        # Equal to the memory: no swap. Left out, the engine grants as much again.
        "MemorySwap": limits.memory_bytes,
        "NanoCpus": round(limits.cpus * NANO),
        "PidsLimit": limits.processes,
        "OomScoreAdj": 500,
        "Ulimits": ulimits(limits, engine),
        "Tmpfs": temporary_file_systems(limits, engine),
        # Any other driver writes the protocol stream, and so the person's data, to disk.
        "LogConfig": {"Type": "none", "Config": {}},
        "Init": True,
        # We read how it ended before we remove it.
        "AutoRemove": False,
        "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0},
    }
    if engine.cgroup_version == "1":
        # Cgroup v2 has no such knob, and some engines refuse a container that sets it.
        config["MemorySwappiness"] = 0
    if spec.runtime:
        config["Runtime"] = spec.runtime
    return config


def ulimits(limits: SandboxLimits, engine: EngineTraits) -> list[dict[str, Any]]:
    values = {"nofile": limits.open_files, "core": 0, "fsize": limits.workspace_bytes}
    if engine.is_podman:
        values["nproc"] = 32_768  # counted over all sandboxes of the user: the limit is PidsLimit
    return [{"Name": name, "Soft": value, "Hard": value} for name, value in values.items()]


def security_options(engine: EngineTraits) -> list[str]:
    options = ["no-new-privileges", f"seccomp={engine.seccomp_file or docker_profile()}"]
    if engine.has_apparmor:
        options.append("apparmor=docker-default")
    return options


def temporary_file_systems(limits: SandboxLimits, engine: EngineTraits) -> dict[str, str]:
    """The only writable places. Bounded in files too, or a million empty ones exhaust the memory."""

    def bounded(size: int, files: int, *others: str) -> str:
        options = ["rw", *others, "nosuid", "nodev", f"size={size}"]
        if not engine.is_podman:
            options += [f"nr_inodes={files}", f"uid={SANDBOX_UID}", f"gid={SANDBOX_UID}", "mode=0700"]
        else:
            options += ["notmpcopyup", "mode=1777"]
        return ",".join(options)

    systems = {
        "/workspace": bounded(limits.workspace_bytes, limits.workspace_files, "exec"),
        "/tmp": bounded(limits.tmp_bytes, limits.tmp_files, "noexec"),  # noqa: S108
        "/dev/shm": bounded(limits.shm_bytes, limits.tmp_files, "noexec"),  # noqa: S108
    }
    # Over what an engine makes writable by itself: Docker the message queues, Podman these two.
    for path in ("/var/tmp", "/run") if engine.is_podman else ("/dev/mqueue",):  # noqa: S108
        systems[path] = "ro,noexec,nosuid,nodev,size=4096"
    return systems


# What must be empty in the engine's account, whatever the image asked for.
_ABSENT = ("Binds", "Devices", "CapAdd", "VolumesFrom", "DeviceRequests", "GroupAdd", "PortBindings", "Links")
_NEVER_HOST = ("PidMode", "UTSMode", "UsernsMode", "CgroupnsMode")


def deviations(
    spec: SandboxSpec, inspected: Mapping[str, Any], engine: EngineTraits = EngineTraits()
) -> list[Property]:
    """One property for each hardening line, held when the engine's inspect output shows it."""
    actual = inspected["HostConfig"]
    if engine.is_podman:
        actual = _as_docker_says_it(inspected)
    properties = [
        Property(f"engine: {key}", _same(key, expected, actual.get(key)), _short(actual.get(key)))
        for key, expected in host_config(spec, engine).items()
    ]
    properties += [
        Property(f"engine: no {key}", not actual.get(key), _short(actual.get(key))) for key in _ABSENT
    ]
    properties += [
        Property(f"engine: {key} is not the host's", actual.get(key) != "host", _short(actual.get(key)))
        for key in _NEVER_HOST
        # The engine's default on cgroup v1 is the host's cgroup namespace; the mount is its own all the same.
        if not (key == "CgroupnsMode" and engine.cgroup_version == "1")
    ]
    mounts = [mount for mount in inspected.get("Mounts") or [] if mount.get("Type") != "tmpfs"]
    properties.append(
        Property("engine: no mounts", not mounts, _short([m.get("Destination") for m in mounts]))
    )
    user = inspected["Config"].get("User")
    properties.append(Property("engine: user", user == USER, _short(user)))
    return properties


def _as_docker_says_it(inspected: Mapping[str, Any]) -> dict[str, Any]:
    """Podman's account: it lists the capabilities dropped one by one, and what is left elsewhere."""
    answer = dict(inspected["HostConfig"])
    if not inspected.get("BoundingCaps") and not inspected.get("EffectiveCaps"):
        answer["CapDrop"] = ["ALL"]
    if answer.get("IpcMode") in ("private", "shareable"):
        answer["IpcMode"] = "none"  # its own namespace; the word only says who may be let in later
    return answer


def _same(key: str, expected: Any, actual: Any) -> bool:
    """Whether the engine's answer means what was told: engines spell the same thing in several ways."""
    match key:
        case "Ulimits":
            return _limits(expected) <= _limits(actual)
        case "SecurityOpt":
            return set(expected) <= {_spelling(option) for option in actual or []}
        case "Tmpfs":
            return all(_options(expected, path) <= _options(actual, path) for path in expected)
        case "LogConfig":
            return bool(actual and actual.get("Type") == "none")
        case "RestartPolicy":
            return bool(actual is None or actual.get("Name") in ("", "no"))
        case _:
            return bool(actual == expected)


def _limits(limits: list[dict[str, Any]] | None) -> set[tuple[str, int, int]]:
    return {
        (limit["Name"].removeprefix("RLIMIT_").lower(), limit["Soft"], limit["Hard"])
        for limit in limits or []
    }


def _options(systems: Mapping[str, str] | None, path: str) -> set[str]:
    # The last is Podman's alone, and an order to it rather than an option of the mount.
    return set((systems or {}).get(path, "").split(",")) - {"notmpcopyup"}


def _spelling(option: str) -> str:
    """Engines answer with `no-new-privileges:true` or `seccomp:…` for what was sent otherwise."""
    return option.removesuffix(":true").replace("seccomp:", "seccomp=", 1)


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
