"""The workspace server as a child process, spoken to line by line. No SDK: it must be told nonsense too."""

import json
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

SERVER = Path(__file__).parents[3] / "images" / "sandbox" / "workspace_server"
SECONDS = 10  # nothing here takes a second; the machine may be busy

Json = dict[str, Any]

MODERN = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


class ServerProcess:
    """One running server, its workspace, and what it said so far."""

    def __init__(
        self,
        workspace: Path,
        *,
        python: str = sys.executable,
        sources: Path = SERVER,
        user: int | None = None,
    ) -> None:
        self.workspace = workspace
        self.notifications: list[Json] = []
        self.answers: dict[object, Json] = {}
        self._last_id = 0
        self._unread = b""
        self.process = subprocess.Popen(
            [python, "-I", "-S", str(sources), "--root", str(workspace)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"SECRET_OF_THE_SERVER": "canary"},
            user=user,
            group=user,
            extra_groups=None if user is None else [],
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(SECONDS)
        finally:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()

    def send(self, message: object) -> None:
        self.send_bytes(json.dumps(message).encode() + b"\n")

    def send_bytes(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def receive(self) -> Json:
        """Return the next message.

        Raises:
            EOFError: the server has ended.
        """
        assert self.process.stdout is not None
        while b"\n" not in self._unread:
            ready, _, _ = select.select([self.process.stdout], [], [], SECONDS)
            assert ready, "the server said nothing in time"
            data = os.read(self.process.stdout.fileno(), 1 << 20)
            if not data:
                raise EOFError
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        message: Json = json.loads(line)
        return message

    def begin(self, method: str, params: Json | None = None) -> int:
        """Send a request and return its id."""
        self._last_id += 1
        self.send({"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": params or {}})
        return self._last_id

    def begin_call(self, name: str, *, progress: bool = False, **arguments: Any) -> int:
        meta = {"progressToken": f"token-{self._last_id + 1}"} if progress else {}
        return self.begin("tools/call", {"name": name, "arguments": arguments, "_meta": meta})

    def answer(self, request_id: int) -> Json:
        """Wait for the answer to this id; what else arrives meanwhile is kept."""
        while request_id not in self.answers:
            message = self.receive()
            if "method" in message:
                self.notifications.append(message)
            else:
                assert message["id"] not in self.answers, "answered twice"
                self.answers[message["id"]] = message
        return self.answers[request_id]

    def request(self, method: str, params: Json | None = None) -> Json:
        return self.answer(self.begin(method, params))

    def call(self, name: str, **arguments: Any) -> "Result":
        return Result(self.answer(self.begin_call(name, **arguments)))

    def cancel(self, request_id: int) -> None:
        self.send(
            {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": request_id}}
        )

    def wait_for_progress(self, text: str) -> None:
        """Wait until the text was shown live."""
        while not any(text in notification["params"]["message"] for notification in self.notifications):
            self.notifications.append(self.receive())

    def is_alive(self) -> bool:
        return "result" in self.request("ping")


class Result:
    """The answer to a tool call."""

    def __init__(self, answer: Json) -> None:
        self.result: Json = answer["result"]
        self.is_error: bool = self.result["isError"]
        self.content: list[Json] = self.result["content"]

    @property
    def text(self) -> str:
        return "\n".join(block["text"] for block in self.content if block["type"] == "text")

    @property
    def first(self) -> str:
        return str(self.content[0]["text"])
