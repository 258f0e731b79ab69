"""The composition root: the one place that chooses and connects concrete classes."""

import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import typer

from mcp_orchestrator import cli
from mcp_orchestrator.sandbox.backend import BackendUnavailable, SandboxBackend
from mcp_orchestrator.sandbox.bubblewrap.backend import BubblewrapBackend
from mcp_orchestrator.sandbox.docker.backend import DockerBackend
from mcp_orchestrator.sandbox.factory import SandboxFactory
from mcp_orchestrator.settings import InvalidSettings, Settings, load_settings


def command_line() -> typer.Typer:
    """The `mcp-orchestrator` command."""
    return cli.command_line(open_sandboxes)


@asynccontextmanager
async def open_sandboxes(backend_name: str | None = None) -> AsyncIterator[SandboxFactory]:
    """The back end that is configured, or the named one, ready to make sandboxes.

    Raises:
        InvalidSettings: a setting is wrong.
        BackendUnavailable: the back end does not work here, or none does.
    """
    settings = load_settings()
    instance = instance_id(settings)
    backend, passed_over = await choose_backend(settings, instance, backend_name or settings.sandbox_backend)
    try:
        yield SandboxFactory(
            backend=backend,
            instance=instance,
            image=settings.sandbox_image,
            limits=settings.sandbox_limits,
            runtime=settings.sandbox_runtime,
            passed_over=passed_over,
        )
    finally:
        await backend.close()


async def choose_backend(settings: Settings, instance: str, choice: str) -> tuple[SandboxBackend, str]:
    """The first that works under `auto`, and why not the one before; a named one or nothing."""
    if choice != "auto":
        return await _connect(choice, settings, instance), ""
    try:
        return await _connect("docker", settings, instance), ""
    except BackendUnavailable as problem:
        # Who points at an engine wants that one: never a silent step down.
        if os.environ.get("DOCKER_HOST"):
            raise
        passed_over = str(problem)
    try:
        return await _connect("bubblewrap", settings, instance), passed_over
    except BackendUnavailable as problem:
        raise BackendUnavailable(f"{passed_over}\n{problem}") from problem


async def _connect(name: str, settings: Settings, instance: str) -> SandboxBackend:
    if name == "docker":
        return await DockerBackend.connect(instance, os.environ, settings.data_dir)
    return await BubblewrapBackend.connect(instance, settings.data_dir / "run")


def instance_id(settings: Settings) -> str:
    """Who we are to an engine that others use too; kept beside the data, so a restart is the same one."""
    if settings.instance_id:
        return settings.instance_id
    try:
        settings.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        return _kept_once(settings.data_dir / "instance-id", secrets.token_hex(4))
    except OSError as error:
        raise InvalidSettings(
            f"DATA_DIR={settings.data_dir}: {error.strerror}. An example: DATA_DIR=/var/lib/mcpo"
        ) from error


def _kept_once(path: Path, text: str) -> str:
    """`text` if we are the first to write the file, else what is in it."""
    ours = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    ours.write_text(text + "\n")
    try:
        path.hardlink_to(ours)
    except FileExistsError:
        pass
    finally:
        ours.unlink()
    return path.read_text().strip()
