import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiodocker import Docker

from scripts.build_image import build_sandbox_image

SERVER = "/opt/mcp/workspace_server"


@pytest.fixture
async def docker(engine: str) -> AsyncIterator[Docker]:
    async with Docker(url=engine) as docker:
        yield docker


@pytest.fixture
async def image(docker: Docker, sandbox_image: str) -> dict[str, Any]:
    return await docker.images.inspect(sandbox_image)


async def test_the_image_is_small(image: dict[str, Any]) -> None:
    assert image["Size"] < 150_000_000


async def test_the_image_starts_the_server_as_an_ordinary_user(image: dict[str, Any]) -> None:
    config = image["Config"]

    assert config["Entrypoint"] == ["python3", "-I", "-S", SERVER]
    assert not config["Cmd"]
    assert config["User"] == "1000:1000"
    assert config["WorkingDir"] == "/workspace"


async def test_the_environment_is_that_of_the_base(image: dict[str, Any]) -> None:
    names = {entry.partition("=")[0] for entry in image["Config"]["Env"]}

    assert names <= {"PATH", "LANG", "GPG_KEY", "PYTHON_VERSION", "PYTHON_SHA256"}


async def test_a_second_build_makes_the_same_layers(docker: Docker, image: dict[str, Any]) -> None:
    name = "mcp-server:test-rebuilt"
    try:
        again = await docker.images.inspect(
            await build_sandbox_image(docker, name=name, use_cache=False),
        )
    finally:
        await docker.images.delete(name, force=True)

    assert again["RootFS"]["Layers"] == image["RootFS"]["Layers"]


async def test_no_program_in_the_image_can_raise_its_rights(
    docker: Docker, sandbox_image: str, instance: str
) -> None:
    search = ("find", "/", "-xdev", "-type", "f", "-perm", "/6000")
    found = await output_of(docker, sandbox_image, instance, *search, user="0:0")

    assert found == ""


async def test_the_server_and_what_it_imports_are_compiled_already(
    docker: Docker, sandbox_image: str, instance: str
) -> None:
    """Python says with `-v` where each module came from."""
    report = await output_of(docker, sandbox_image, instance, "python3", "-I", "-S", "-v", SERVER)

    origins = re.findall(r"# code object from '?(.+?)'?$", report, re.MULTILINE)
    assert [origin for origin in origins if origin.startswith(SERVER)]
    assert [origin for origin in origins if not origin.endswith(".pyc")] == []


@pytest.mark.parametrize("module", ["asyncio", "ctypes", "json", "lzma", "sqlite3", "ssl", "zlib"])
async def test_the_standard_library_is_whole(
    docker: Docker, sandbox_image: str, instance: str, module: str
) -> None:
    report = await output_of(
        docker, sandbox_image, instance, "python3", "-c", f"import {module}; print('works')"
    )

    assert report.strip() == "works"


async def test_the_tools_a_person_expects_are_there(
    docker: Docker, sandbox_image: str, instance: str
) -> None:
    tools = "sh bash ls find grep sed awk tar gzip python3 diff"

    script = f"for tool in {tools}; do command -v $tool >/dev/null || echo $tool; done"
    missing = await output_of(docker, sandbox_image, instance, "sh", "-c", script)

    assert missing == ""


async def output_of(docker: Docker, image: str, instance: str, *command: str, user: str = "") -> str:
    """What a command in the image writes, with the root read-only as in a sandbox."""
    container = await docker.containers.create(
        {
            "Image": image,
            "Entrypoint": list(command),
            "User": user,
            "Labels": {"io.mcp-orchestrator.instance": instance},
            "HostConfig": {"NetworkMode": "none", "ReadonlyRootfs": True},
        },
        name=f"mcpo-{instance}-image",
    )
    try:
        await container.start()
        await container.wait(timeout=20)
        return "".join(await container.log(stdout=True, stderr=True))
    finally:
        await container.delete(force=True, v=True)
