"""The yardstick: the engine's API and the server's protocol with nothing of ours between them.

The same image and the same description of the container, so that the difference is our code alone.
"""

import json
from typing import Any

from aiodocker import Docker
from aiodocker.containers import DockerContainer

from mcp_orchestrator.sandbox.backend import ByteStreams
from mcp_orchestrator.sandbox.docker.stream import Endpoint, EngineStream, open_stream

_META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "bare", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


async def started(docker: Docker, config: dict[str, Any], name: str) -> DockerContainer:
    """Create and start, as an engine does it for anybody."""
    container = await docker.containers.create(config, name=name)
    await container.start()
    return container


async def attached(docker: Docker, endpoint: Endpoint, config: dict[str, Any], name: str) -> EngineStream:
    """Create, attach and start."""
    container = await docker.containers.create(config, name=name)
    target = f"/{docker.api_version}/containers/{container.id}/attach?stream=1&stdin=1&stdout=1&stderr=1"
    stream = await open_stream(endpoint, target)
    await container.start()
    return stream


async def asked(stream: ByteStreams, request_id: int, method: str, **params: Any) -> dict[str, Any]:
    """One request and its answer, a line each."""
    request = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": {**params, "_meta": _META}}
    await stream.write(json.dumps(request).encode() + b"\n")
    said = b""
    while not said.endswith(b"\n"):
        output = await stream.read()
        assert output is not None, "the server ended"
        if output.source == "stdout":
            said += output.data
    answer: dict[str, Any] = json.loads(said)
    return answer
