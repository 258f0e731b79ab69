"""What the engine is told about a sandbox. Pure: every line of hardening is here and nowhere else."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from mcp_orchestrator.sandbox.backend import SANDBOX_UID, SandboxLimits, SandboxSpec
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
    # Limits it takes down and does not hold, as rootless engines do without delegated control groups.
    unenforced: tuple[str, ...] = ()


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
