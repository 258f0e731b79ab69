"""Finding a container engine and learning what it is."""

import asyncio
import hashlib
import os
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from aiodocker import Docker
from aiodocker.exceptions import DockerError
from aiohttp import ClientError

from mcp_orchestrator.sandbox.backend import BackendUnavailable
from mcp_orchestrator.sandbox.docker.description import EngineTraits
from mcp_orchestrator.sandbox.docker.stream import Endpoint
from mcp_orchestrator.sandbox.seccomp import docker_profile

# A live engine answers a version request in milliseconds; a dead socket should not hold the start.
_ANSWER_SECONDS: Final = 5


async def connect(environment: Mapping[str, str] = os.environ) -> tuple[Docker, Endpoint]:
    """The first engine that answers.

    Raises:
        BackendUnavailable: none does; says where was looked and what to do.
    """
    tried: list[str] = []
    try:
        endpoints = list(candidates(environment))
    except (OSError, ssl.SSLError) as error:
        raise BackendUnavailable(f"The certificates in DOCKER_CERT_PATH cannot be used: {error}") from error
    for endpoint in endpoints:
        try:
            return await _greet(endpoint), endpoint
        except (DockerError, ClientError, OSError, TimeoutError, ValueError) as error:
            tried.append(f"{endpoint.url} ({_reason(error)})")
    where = "; ".join(tried) or "no socket found at the usual places"
    raise BackendUnavailable(f"No container engine answers: {where}. {_next_step(where)}")


def candidates(environment: Mapping[str, str]) -> Iterator[Endpoint]:
    """Where an engine may listen. A `DOCKER_HOST` is a wish: nothing else is tried then."""
    if host := environment.get("DOCKER_HOST"):
        tls = _client_certificates(environment) if environment.get("DOCKER_TLS_VERIFY") else None
        if urlsplit(host).scheme not in ("unix", "tcp", "http", "https"):
            raise BackendUnavailable(
                f"DOCKER_HOST={host} is not supported; use unix:///path or tcp://host:port."
            )
        yield Endpoint(host, tls)
        return
    runtime = Path(environment.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}")
    home = Path(environment.get("HOME") or "/nonexistent")
    for path in (
        Path("/var/run/docker.sock"),
        runtime / "docker.sock",  # rootless Docker
        home / ".docker/run/docker.sock",
        runtime / "podman/podman.sock",
        Path("/run/podman/podman.sock"),
    ):
        if _is_socket(path):
            yield Endpoint(f"unix://{path}")


async def traits(docker: Docker, data_dir: Path) -> EngineTraits:
    """What of the engine matters to how we describe a container."""
    account = await docker.system.info()
    version = await docker.version()
    components = {component.get("Name") for component in version.get("Components") or []}
    is_podman = "Podman Engine" in components
    options = account.get("SecurityOptions") or []
    return EngineTraits(
        cgroup_version=str(account.get("CgroupVersion") or "1").removeprefix("v"),
        # Podman applies its own profile by itself.
        has_apparmor=not is_podman and any("apparmor" in option for option in options),
        seccomp_file=str(_profile_file(data_dir)) if is_podman else "",
        is_podman=is_podman,
        unenforced=_unenforced(account),
    )


def _unenforced(account: Mapping[str, Any]) -> tuple[str, ...]:
    names = {"memory": "MemoryLimit", "processes": "PidsLimit", "cpu": "CpuCfsQuota"}
    if account.get("CgroupDriver") == "none":
        return tuple(names)
    # Podman spells the last one otherwise.
    found = {key.lower(): value for key, value in account.items()}
    return tuple(name for name, key in names.items() if not found.get(key.lower()))


def _profile_file(data_dir: Path) -> Path:
    """The system call filter as a file that an engine on this machine can read."""
    profile = docker_profile()
    digest = hashlib.sha256(profile.encode()).hexdigest()[:12]
    path = data_dir / f"seccomp-{digest}.json"
    if not path.exists():
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        written = path.with_suffix(f".{os.getpid()}")
        written.write_text(profile)
        written.rename(path)
    return path


async def _greet(endpoint: Endpoint) -> Docker:
    docker = Docker(url=endpoint.url, ssl_context=endpoint.tls)
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            await docker.version()
    except BaseException:
        await docker.close()
        raise
    return docker


def _client_certificates(environment: Mapping[str, str]) -> ssl.SSLContext:
    folder = Path(environment.get("DOCKER_CERT_PATH") or "~/.docker").expanduser()
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


def _is_socket(path: Path) -> bool:
    try:
        return path.is_socket()
    except OSError:
        return False


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {_ANSWER_SECONDS} s"
    text = str(error)
    for plain in ("Permission denied", "No such file or directory", "Connection refused"):
        if plain in text:
            return plain.lower()
    return text[:200] or type(error).__name__


def _next_step(where: str) -> str:
    if "permission denied" in where:
        return "You may not use it: join the group that owns the socket (usually docker), or use sudo."
    return "Start Docker or Podman, or point DOCKER_HOST at it."
