"""The engine's own account of a container against what it was told. Pure.

An engine, or a proxy before it, that ignores or adds a field is common, and
must be noticed: what was not told must be at its default.
"""

from collections.abc import Mapping
from typing import Any, Final

from mcp_orchestrator.sandbox.backend import SandboxSpec
from mcp_orchestrator.sandbox.docker.description import USER, EngineTraits, host_config
from mcp_orchestrator.sandbox.properties import Property

# An engine's own defaults: not empty, judged below where they matter, harmless otherwise.
_DEFAULTS: Final = {
    "CgroupnsMode",
    "ConsoleSize",
    "Isolation",
    "MaskedPaths",
    "ReadonlyPaths",
    "Runtime",
    "ShmSize",
}
_MASKED: Final = {"/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"}
_READ_ONLY: Final = {"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
# What must be empty even in an account that says more than it was told.
_ABSENT: Final = (
    "Binds",
    "CapAdd",
    "DeviceCgroupRules",
    "DeviceRequests",
    "Devices",
    "GroupAdd",
    "Links",
    "OomKillDisable",
    "PortBindings",
    "Sysctls",
    "VolumesFrom",
)
_NEVER_HOST: Final = ("PidMode", "UTSMode", "UsernsMode", "CgroupnsMode")
# Variables that engines add by themselves.
_ENGINE_VARIABLES: Final = {"PATH", "HOME", "HOSTNAME", "TERM", "container"}


def deviations(
    spec: SandboxSpec,
    inspected: Mapping[str, Any],
    image: Mapping[str, Any],
    engine: EngineTraits = EngineTraits(),
) -> list[Property]:
    """One property for each line, held when the engine's inspect output shows what was told."""
    actual = _as_docker_says_it(inspected) if engine.is_podman else inspected["HostConfig"]
    return [
        *_told(spec, actual, engine),
        *_not_told(spec, actual, engine),
        *_paths(actual, engine),
        *_program(spec, inspected, image),
        _property(
            "holds the limits it was told",
            not engine.unenforced,
            f"not {', '.join(engine.unenforced)}: it has no control groups for them"
            if engine.unenforced
            else "all",
        ),
    ]


def _told(spec: SandboxSpec, actual: Mapping[str, Any], engine: EngineTraits) -> list[Property]:
    return [
        _property(key, _same(key, expected, actual.get(key), engine), actual.get(key))
        for key, expected in host_config(spec, engine).items()
    ]


def _not_told(spec: SandboxSpec, actual: Mapping[str, Any], engine: EngineTraits) -> list[Property]:
    empty = [_property(f"no {key}", not actual.get(key), actual.get(key)) for key in _ABSENT]
    hosts = [
        _property(f"{key} is not the host's", actual.get(key) != "host", actual.get(key))
        for key in _NEVER_HOST
        # The default on cgroup v1 is the host's cgroup namespace; only its own part is mounted.
        if not (key == "CgroupnsMode" and engine.cgroup_version == "1")
    ]
    if engine.is_podman:  # it also lists its own settings there
        return empty + hosts
    known = {*host_config(spec, engine), *_DEFAULTS, *_ABSENT, *_NEVER_HOST}
    others = sorted(key for key, value in actual.items() if value and key not in known)
    return [*empty, *hosts, _property("nothing else", not others, ", ".join(others) or "none")]


def _paths(actual: Mapping[str, Any], engine: EngineTraits) -> list[Property]:
    if engine.is_podman:  # which does not tell them; the inside view tries them
        return []
    masked, read_only = set(actual.get("MaskedPaths") or []), set(actual.get("ReadonlyPaths") or [])
    return [
        _property("masked paths", masked >= _MASKED, sorted(_MASKED - masked) or "all"),
        _property("read-only paths", read_only >= _READ_ONLY, sorted(_READ_ONLY - read_only) or "all"),
    ]


def _program(spec: SandboxSpec, inspected: Mapping[str, Any], image: Mapping[str, Any]) -> list[Property]:
    config, own = inspected["Config"], image.get("Config") or {}
    program = [*spec.command] or [*_words(own.get("Entrypoint")), *_words(own.get("Cmd"))]
    running = [*_words(config.get("Entrypoint")), *_words(config.get("Cmd"))]
    variables = set(config.get("Env") or []) - set(own.get("Env") or [])
    added = sorted({variable.split("=")[0] for variable in variables} - _ENGINE_VARIABLES)
    check = (config.get("Healthcheck") or {}).get("Test") or ["NONE"]
    mounts = [mount["Destination"] for mount in inspected.get("Mounts") or [] if mount.get("Type") != "tmpfs"]
    return [
        _property("image", _id(inspected.get("Image")) == _id(spec.image), inspected.get("Image")),
        _property("program", running == program, running),
        _property("user", config.get("User") == USER, config.get("User")),
        _property("no variables of ours", not added, added or "none"),
        _property("no health check", check == ["NONE"], check),
        _property("no mounts", not mounts, mounts or "none"),
    ]


def _same(key: str, expected: Any, actual: Any, engine: EngineTraits) -> bool:
    """Whether the engine's answer means what was told: engines spell the same thing in several ways."""
    match key:
        case "Ulimits":
            return _limits(expected) <= _limits(actual)
        case "SecurityOpt":
            options = {_spelling(option) for option in actual or []}
            return set(expected) <= options if engine.is_podman else set(expected) == options
        case "Tmpfs":
            shown = actual or {}
            is_all_there = all(_options(expected, path) <= _options(shown, path) for path in expected)
            return is_all_there and set(shown) == set(expected)
        case "LogConfig":
            return bool(actual and actual.get("Type") == "none")
        case "RestartPolicy":
            return bool(actual is None or actual.get("Name") in ("", "no"))
        case _:
            return bool(actual == expected)


def _as_docker_says_it(inspected: Mapping[str, Any]) -> dict[str, Any]:
    """Podman's account: it lists the capabilities dropped one by one, and what is left elsewhere."""
    answer = dict(inspected["HostConfig"])
    if not inspected.get("BoundingCaps") and not inspected.get("EffectiveCaps"):
        answer["CapDrop"] = ["ALL"]
    if answer.get("IpcMode") in ("private", "shareable"):
        answer["IpcMode"] = "none"  # its own namespace; the word only says who may be let in later
    return answer


def _limits(limits: list[dict[str, Any]] | None) -> set[tuple[str, int, int]]:
    return {
        (limit["Name"].removeprefix("RLIMIT_").lower(), limit["Soft"], limit["Hard"])
        for limit in limits or []
    }


def _options(systems: Mapping[str, str], path: str) -> set[str]:
    # The last is Podman's alone, and an order to it rather than an option of the mount.
    return set(systems.get(path, "").split(",")) - {"notmpcopyup"}


def _spelling(option: str) -> str:
    """Engines answer with `no-new-privileges:true` or `seccomp:…` for what was sent otherwise."""
    return option.removesuffix(":true").replace("seccomp:", "seccomp=", 1)


def _words(command: list[str] | str | None) -> list[str]:
    return command.split() if isinstance(command, str) else list(command or [])


def _id(image: str | None) -> str:
    return (image or "").removeprefix("sha256:")


def _property(name: str, held: bool, seen: object) -> Property:
    text = str(seen)
    return Property(f"engine: {name}", held, text if len(text) <= 80 else text[:77] + "...")
