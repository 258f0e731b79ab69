"""Build the image of the sandbox, `mcp-server:latest`, with whatever engine and base there is: `make image`.

The base is, in this order: the image named in BASE_IMAGE, and then no other; the public one that the
Dockerfile names; one made here from Debian packages. What an earlier build left is used before anything is
fetched.
"""

import asyncio
import os
import re
import sys
import tarfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, Final

from aiodocker import Docker
from aiodocker.exceptions import DockerError

from mcp_orchestrator.sandbox.backend import BackendUnavailable
from mcp_orchestrator.sandbox.docker.engine import connect
from scripts import debian_base

IMAGE: Final = "mcp-server:latest"
ROOT: Final = Path(__file__).parent.parent
SOURCES: Final = ROOT / "images" / "sandbox"
CACHE: Final = ROOT / ".cache"

# A registry that is there says something by then, and a machine without one should not wait for it.
SILENCE_SECONDS: Final = 20
PULL_SECONDS: Final = 600
BUILD_SECONDS: Final = 300


async def build_sandbox_image(
    docker: Docker,
    *,
    name: str = IMAGE,
    use_cache: bool = True,
    environment: Mapping[str, str] = os.environ,
) -> str:
    """Build the image and answer its id.

    Raises:
        BaseUnavailable: there is nothing to build it on.
        DockerError: the engine could not build it.
    """
    base = await _base(docker, environment.get("BASE_IMAGE", ""))
    print(f"Building {name} on {base}")
    async with asyncio.timeout(BUILD_SECONDS):
        await docker.images.build(
            fileobj=BytesIO(_context(SOURCES)),
            encoding="identity",
            tag=name,
            nocache=not use_cache,
            buildargs={"BASE_IMAGE": base},
            forcerm=True,
        )
    identity: str = (await docker.images.inspect(name))["Id"]
    return identity


async def _base(docker: Docker, wish: str) -> str:
    public = wish or _default_base()
    if await _has(docker, public):
        return public
    if wish:
        await _pull(docker, wish)
        return wish
    try:
        own = debian_base.name()
        is_at_hand = await _has(docker, own) or debian_base.cached(CACHE).exists()
    except debian_base.BaseUnavailable:
        is_at_hand = False
    if not is_at_hand:
        try:
            await _pull(docker, public)
        except debian_base.BaseUnavailable as reason:
            print(f"{reason} Building a base from Debian packages instead, in about half a minute.")
        else:
            return public
    if not await _has(docker, own):
        archive = await asyncio.to_thread(debian_base.archive, CACHE)
        with archive.open("rb") as content:
            await docker.images.import_image(content)
    return own


async def _pull(docker: Docker, image: str) -> None:
    print(f"Fetching {image}")
    try:
        async with asyncio.timeout(PULL_SECONDS):
            news = aiter(docker.images.pull(image, stream=True))
            while await asyncio.wait_for(anext(news, None), SILENCE_SECONDS) is not None:
                pass
    except TimeoutError:
        raise debian_base.BaseUnavailable(f"{image} does not arrive.") from None
    except DockerError as error:
        raise debian_base.BaseUnavailable(f"{image} cannot be fetched: {error.message}.") from error
    if not await _has(docker, image):
        raise debian_base.BaseUnavailable(f"{image} cannot be fetched.")


async def _has(docker: Docker, image: str) -> bool:
    try:
        await docker.images.inspect(image)
    except DockerError as error:
        if error.status != 404:
            raise
        return False
    return True


def _default_base() -> str:
    found = re.search(r"^ARG BASE_IMAGE=(\S+)", (SOURCES / "Dockerfile").read_text(encoding="utf-8"), re.M)
    assert found, "the Dockerfile names its default base"
    return found[1]


def _context(sources: Path) -> bytes:
    """The files of the build as an archive that depends on nothing but their names and content."""
    buffer = BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path in sorted(sources.rglob("*")):
            if path.name == "Dockerfile" or path.suffix == ".py":
                data = path.read_bytes()
                entry = tarfile.TarInfo(path.relative_to(sources).as_posix())
                entry.size = len(data)
                archive.addfile(entry, BytesIO(data))
    return buffer.getvalue()


async def main(*, is_optional: bool) -> None:
    try:
        docker, endpoint = await connect()
    except BackendUnavailable:
        if is_optional:
            return
        raise
    async with docker:
        print(f"Engine: {endpoint.url}")
        identity = await build_sandbox_image(docker)
        image: dict[str, Any] = await docker.images.inspect(identity)
    print(f"{IMAGE} is {identity}, {image['Size'] / 1e6:.0f} MB")


if __name__ == "__main__":
    try:
        asyncio.run(main(is_optional="--if-an-engine-answers" in sys.argv))
    except (BackendUnavailable, DockerError, debian_base.BaseUnavailable, TimeoutError) as reason:
        sys.exit(f"The image was not built: {reason or 'the engine took too long.'}")
