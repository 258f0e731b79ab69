"""What is the engine's alone: what it answers, what images want, and who stands before it."""

import asyncio
import io
import json
import os
import signal
import sys
import tarfile
import textwrap
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from aiodocker import Docker

from mcp_orchestrator.sandbox import names
from mcp_orchestrator.sandbox.backend import BackendUnavailable, ImageMissing, SandboxConflict
from mcp_orchestrator.sandbox.docker.backend import DockerBackend
from mcp_orchestrator.sandbox.docker.description import EngineTraits, container_config
from mcp_orchestrator.sandbox.probe import SandboxUnsound
from mcp_orchestrator.tools.proof import open_proven_toolbox
from tests.support.attacks import shell
from tests.support.engine_proxy import Change, meddling_proxy
from tests.support.workshop import Workshop, open_workshop

MIB = 1024 * 1024

# All an engine may show that is not empty. What is not named here must be: "", 0, null, [], {} or false.
GOLDEN: dict[str, Any] = {
    "LogConfig": {"Type": "none", "Config": {}},
    "NetworkMode": "none",
    "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0},
    "CapDrop": ["ALL"],
    "IpcMode": "none",
    "OomScoreAdj": 500,
    "ReadonlyRootfs": True,
    "Memory": 512 * MIB,
    "MemorySwap": 512 * MIB,
    "NanoCpus": 500_000_000,
    "PidsLimit": 128,
    "Init": True,
    "Tmpfs": {
        "/workspace": "rw,exec,nosuid,nodev,size=134217728,nr_inodes=16384,uid=1000,gid=1000,mode=0700",
        "/tmp": "rw,noexec,nosuid,nodev,size=67108864,nr_inodes=4096,uid=1000,gid=1000,mode=0700",
        "/dev/shm": "rw,noexec,nosuid,nodev,size=16777216,nr_inodes=4096,uid=1000,gid=1000,mode=0700",
        "/dev/mqueue": "ro,noexec,nosuid,nodev,size=4096",
    },
}
ULIMITS = {("nofile", 1024, 1024), ("core", 0, 0), ("fsize", 128 * MIB, 128 * MIB)}
# The engine's own defaults, which only take away.
ENGINE_DEFAULTS = {
    "MaskedPaths",
    "ReadonlyPaths",
    "Runtime",
    "ShmSize",
    "CgroupnsMode",
    "Isolation",
    "ConsoleSize",
}


@pytest.fixture
async def docker_workshop(
    engine: str, sandbox_image: str, instance: str, tmp_path: Path
) -> AsyncIterator[Workshop]:
    async with open_workshop("docker", instance, engine, sandbox_image, tmp_path) as workshop:
        yield workshop


async def inspected(engine: str, container: str) -> dict[str, Any]:
    async with Docker(url=engine) as docker:
        return await (await docker.containers.get(container)).show()


async def test_e17_the_engine_shows_exactly_what_was_told(docker_workshop: Workshop, engine: str) -> None:
    sandbox = await docker_workshop.make()
    answer = await inspected(engine, sandbox.id)
    host = answer["HostConfig"]

    profile = [option for option in host.pop("SecurityOpt") if option.startswith("seccomp=")]
    assert {(limit["Name"], limit["Soft"], limit["Hard"]) for limit in host.pop("Ulimits")} == ULIMITS
    assert json.loads(profile[0].removeprefix("seccomp="))["defaultAction"] == "SCMP_ACT_ERRNO"
    named = {key: host[key] for key in GOLDEN}
    assert named == GOLDEN
    others = {key: value for key, value in host.items() if key not in GOLDEN | dict.fromkeys(ENGINE_DEFAULTS)}
    assert {key: value for key, value in others.items() if value} == {}
    assert answer["Mounts"] == []
    assert answer["Config"]["User"] == "1000:1000"
    assert answer["Config"]["StdinOnce"] is False
    assert answer["Image"] == docker_workshop.image
    assert set(answer["Config"]["Labels"]) >= {names.INSTANCE_LABEL, names.CREATED_LABEL, names.SPEC_LABEL}
    assert answer["LogPath"] == ""


async def image_with(engine: str, base: str, instructions: str, tag: str) -> str:
    """An image that somebody else built, with metadata of its own."""
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as tar:
        dockerfile = f"FROM {base}\n{textwrap.dedent(instructions)}".encode()
        member = tarfile.TarInfo("Dockerfile")
        member.size = len(dockerfile)
        tar.addfile(member, io.BytesIO(dockerfile))
    context.seek(0)
    async with Docker(url=engine) as docker:
        await docker.images.build(fileobj=context, encoding="identity", tag=tag, rm=True)
    return tag


async def test_e03_nothing_an_image_says_of_itself_changes_the_sandbox(
    docker_workshop: Workshop, engine: str, sandbox_image: str
) -> None:
    tag = await image_with(
        engine,
        sandbox_image,
        """
        USER root
        LABEL io.mcp-orchestrator.instance=another privileged=true
        HEALTHCHECK --interval=1s CMD touch /workspace/unasked
        STOPSIGNAL SIGUSR1
        EXPOSE 80
        """,
        "mcpo-test-rootish:latest",
    )
    docker_workshop.image = await docker_workshop.backend.resolve(tag)

    async with docker_workshop.toolbox() as toolbox:
        said = await shell(toolbox, "id; ls -A /workspace")
    labels = docker_workshop.made[-1].labels

    assert "uid=1000" in said.text
    assert "gid=1000" in said.text
    assert "unasked" not in said.text
    assert labels[names.INSTANCE_LABEL] == docker_workshop.instance


async def test_an_image_that_wants_volumes_is_refused(
    docker_workshop: Workshop, engine: str, sandbox_image: str
) -> None:
    tag = await image_with(engine, sandbox_image, "VOLUME /data", "mcpo-test-volume:latest")

    with pytest.raises(ImageMissing, match="volumes"):
        await docker_workshop.backend.resolve(tag)


async def test_a_missing_image_is_told_with_the_way_to_get_it(docker_workshop: Workshop) -> None:
    with pytest.raises(ImageMissing, match="SANDBOX_IMAGE"):
        await docker_workshop.backend.resolve("no-such-image:latest")


def dropped(*fields: str) -> Change:
    def change(config: dict[str, Any]) -> None:
        for field in fields:
            config["HostConfig"].pop(field, None)

    return change


def replaced(**fields: Any) -> Change:
    return lambda config: config["HostConfig"].update(fields)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (dropped("SecurityOpt"), "SecurityOpt"),
        (dropped("PidsLimit"), "PidsLimit"),
        (dropped("Memory", "MemorySwap"), "Memory"),
        (dropped("ReadonlyRootfs"), "ReadonlyRootfs"),
        (dropped("CapDrop"), "CapDrop"),
        (dropped("Tmpfs"), "Tmpfs"),
        (dropped("Init"), "Init"),
        (replaced(Binds=["/etc:/host:ro"]), "Binds"),
        (replaced(LogConfig={"Type": "json-file"}), "LogConfig"),
        (replaced(MaskedPaths=[]), "masked paths"),
        (replaced(DeviceCgroupRules=["c 1:3 rwm"]), "DeviceCgroupRules"),
        (lambda config: config.update(Env=["LD_PRELOAD=/x.so"]), "variables"),
        (lambda config: config.update(Cmd=["--evil"]), "program"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_e18_an_engine_that_ignores_a_field_gets_no_tool_to_run(
    engine: str, sandbox_image: str, instance: str, tmp_path: Path, change: Change, named: str
) -> None:
    async with (
        meddling_proxy(engine, tmp_path, change) as address,
        open_workshop("docker", instance, address, sandbox_image, tmp_path) as workshop,
    ):
        with pytest.raises(SandboxUnsound, match=named):
            async with workshop.toolbox():
                pass


async def test_an_honest_proxy_changes_nothing(
    engine: str, sandbox_image: str, instance: str, tmp_path: Path
) -> None:
    async with (
        meddling_proxy(engine, tmp_path, lambda _: None) as address,
        open_workshop("docker", instance, address, sandbox_image, tmp_path) as workshop,
        workshop.toolbox() as toolbox,
    ):
        assert "hello" in (await shell(toolbox, "echo hello")).text


async def test_no_engine_is_told_with_what_was_tried(tmp_path: Path) -> None:
    with pytest.raises(BackendUnavailable, match=r"nothing\.sock"):
        await DockerBackend.connect("test-none", {"DOCKER_HOST": f"unix://{tmp_path}/nothing.sock"}, tmp_path)


async def test_a_name_held_by_a_stranger_is_left_alone(docker_workshop: Workshop, engine: str) -> None:
    spec = docker_workshop.spec("/bin/cat", name=names.session_name(docker_workshop.instance, "s"))
    async with Docker(url=engine) as docker:
        config: dict[str, Any] = {
            "Image": docker_workshop.image,
            "Entrypoint": [],
            "Cmd": ["/bin/cat"],
            "OpenStdin": True,
        }
        stranger = await docker.containers.create(config, name=spec.name)
        try:
            with pytest.raises(SandboxConflict, match="left alone"):
                await docker_workshop.backend.create(spec)
            assert (await stranger.show())["State"]["Status"] == "created"
        finally:
            await stranger.delete(force=True)


async def test_a_container_whose_maker_died_before_the_start_is_started(
    docker_workshop: Workshop, engine: str
) -> None:
    spec = docker_workshop.spec("/bin/cat", name=names.session_name(docker_workshop.instance, "s"))
    async with Docker(url=engine) as docker:
        config = container_config(spec, names.labels(docker_workshop.instance, spec), EngineTraits("1"))
        remnant = await docker.containers.create(config, name=spec.name)

    adopted = await docker_workshop.create(spec)

    assert adopted.id == remnant.id
    assert (await adopted.state()).status == "running"


async def test_a_creation_given_up_removes_only_what_it_made_itself(docker_workshop: Workshop) -> None:
    spec = docker_workshop.spec("/bin/cat", name=names.session_name(docker_workshop.instance, "s"))
    other = await docker_workshop.create(spec)
    backend = docker_workshop.backend
    assert isinstance(backend, DockerBackend)

    await backend._discard_attempt(spec.name, "of somebody else")
    assert (await other.state()).status == "running"
    await backend._discard_attempt(spec.name, other.labels[names.ATTEMPT_LABEL])
    assert (await other.state()).status == "gone"


async def test_a_cancelled_creation_leaves_nothing(docker_workshop: Workshop) -> None:
    for moment in (0.0, 0.005, 0.02, 0.05, 0.08):
        making = asyncio.create_task(docker_workshop.backend.create(docker_workshop.spec("/bin/cat")))
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(making), moment)
        making.cancel()
        with suppress(asyncio.CancelledError):
            await (await making).remove()

    assert await docker_workshop.backend.find_all() == []


KILLED = """
import asyncio, pathlib, sys
from mcp_orchestrator.sandbox.backend import SandboxSpec
from mcp_orchestrator.sandbox.docker.backend import DockerBackend
from mcp_orchestrator.tools.toolbox import open_toolbox

async def main():
    host, instance, image, name = sys.argv[1:]
    backend = await DockerBackend.connect(instance, {"DOCKER_HOST": host}, pathlib.Path("/nonexistent"))
    sandbox = await backend.create(SandboxSpec(name=name, image=image))
    async with open_toolbox(sandbox) as toolbox:
        await toolbox.run("write_file", {"path": "kept", "content": "by the first"}, 10)
        await toolbox._bridge._streams.write(b'{"jsonrpc": "2.0", "id": 1, "meth')
        print("ready", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_after_kill_9_of_ours_the_next_process_attaches_to_the_same_sandbox(
    docker_workshop: Workshop, engine: str
) -> None:
    spec = docker_workshop.spec(name=names.session_name(docker_workshop.instance, "survivor"))
    arguments = [engine, docker_workshop.instance, spec.image, spec.name]
    first = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED, *arguments, stdout=asyncio.subprocess.PIPE
    )
    assert first.stdout is not None
    async with asyncio.timeout(20):
        assert await first.stdout.readline() == b"ready\n"
    os.kill(first.pid, signal.SIGKILL)
    await first.wait()

    found = [sandbox.name for sandbox in await docker_workshop.backend.find_all()]
    adopted = await docker_workshop.create(spec)
    async with open_proven_toolbox(adopted, spec) as (toolbox, _):
        kept = await toolbox.run("read_file", {"path": "kept"}, 10)

    assert found == [spec.name]
    assert "by the first" in kept.text
