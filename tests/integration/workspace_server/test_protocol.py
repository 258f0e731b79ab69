import json
import signal
from pathlib import Path

import pytest

from tests.integration.workspace_server.client import MODERN, Json, ServerProcess

HANDSHAKE_VERSIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]
TOOLS = ["read_file", "write_file", "edit_file", "list_files", "search_files", "execute_command"]
CALL = b'{"jsonrpc":"2.0","id":5,"method":"tools/call","params":'


def initialize(server: ServerProcess, version: str = "2025-11-25") -> Json:
    client = {"name": "test", "version": "1"}
    return server.request(
        "initialize", {"protocolVersion": version, "capabilities": {}, "clientInfo": client}
    )


@pytest.mark.parametrize("version", HANDSHAKE_VERSIONS)
def test_a_handshake_is_answered_in_the_version_that_was_asked_for(
    server: ServerProcess, version: str
) -> None:
    result = initialize(server, version)["result"]

    assert result["protocolVersion"] == version
    assert "tools" in result["capabilities"]
    assert result["serverInfo"]["name"] == "workspace"
    assert result["_meta"]["io.mcp-orchestrator/sandbox"]["dumpable"] is False


def test_a_handshake_in_an_unknown_version_is_answered_with_the_newest(server: ServerProcess) -> None:
    assert initialize(server, "1999-01-01")["result"]["protocolVersion"] == "2025-11-25"


def test_a_second_handshake_on_the_same_stream_is_accepted(server: ServerProcess) -> None:
    initialize(server)
    assert initialize(server, "2025-03-26")["result"]["protocolVersion"] == "2025-03-26"


def test_a_handshake_without_a_version_is_refused(server: ServerProcess) -> None:
    assert server.request("initialize", {})["error"]["code"] == -32602


def test_discovery_needs_no_handshake_and_carries_the_facts(server: ServerProcess) -> None:
    result = server.request("server/discover", {"_meta": MODERN})["result"]

    assert "2026-07-28" in result["supportedVersions"]
    assert result["resultType"] == "complete"
    assert result["ttlMs"] >= 0
    assert result["cacheScope"] == "private"
    assert result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "workspace"
    assert result["_meta"]["io.mcp-orchestrator/sandbox"]["dumpable"] is False


def test_both_eras_are_served_on_one_stream_in_any_order(server: ServerProcess) -> None:
    assert "ttlMs" in server.request("tools/list", {"_meta": MODERN})["result"]
    initialize(server)
    assert "ttlMs" not in server.request("tools/list")["result"]
    modern = server.request("tools/call", {"name": "list_files", "arguments": {}, "_meta": MODERN})["result"]
    assert modern["resultType"] == "complete"
    assert "resultType" not in server.call("list_files").result


def test_an_unsupported_modern_version_is_refused_with_those_that_are(server: ServerProcess) -> None:
    meta = {**MODERN, "io.modelcontextprotocol/protocolVersion": "2099-01-01"}
    error = server.request("tools/list", {"_meta": meta})["error"]

    assert error["code"] == -32022
    assert error["data"]["requested"] == "2099-01-01"
    assert "2026-07-28" in error["data"]["supported"]


@pytest.mark.parametrize(
    "meta",
    [
        {},
        {"io.modelcontextprotocol/protocolVersion": "2026-07-28"},
        {**MODERN, "io.modelcontextprotocol/protocolVersion": 20260728},
    ],
)
def test_an_incomplete_envelope_is_refused(server: ServerProcess, meta: Json) -> None:
    assert server.request("server/discover", {"_meta": meta})["error"]["code"] == -32602


def test_ping_belongs_to_the_handshake_era_only(server: ServerProcess) -> None:
    assert server.request("ping")["result"] == {}
    assert server.request("ping", {"_meta": MODERN})["error"]["code"] == -32601


def test_the_tools_are_listed_in_one_page_in_a_fixed_order(server: ServerProcess) -> None:
    first, second = server.request("tools/list")["result"], server.request("tools/list")["result"]

    assert first == second
    assert [tool["name"] for tool in first["tools"]] == TOOLS
    assert "nextCursor" not in first
    for tool in first["tools"]:
        assert tool["title"]
        assert tool["description"]
        assert tool["inputSchema"]["additionalProperties"] is False
        assert tool["annotations"]["openWorldHint"] is False
        assert all(value["description"] for value in tool["inputSchema"]["properties"].values())


def test_a_cursor_that_was_never_given_is_refused(server: ServerProcess) -> None:
    assert server.request("tools/list", {"cursor": "page-2"})["error"]["code"] == -32602


@pytest.mark.parametrize(
    ("line", "code", "request_id"),
    [
        (b"{not json", -32700, None),
        (b"\xff\xfe", -32700, None),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"n":NaN}}', -32700, None),
        (b'"text"', -32600, None),
        (b"[]", -32600, None),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', -32600, None),
        (b'{"id":1,"method":"ping"}', -32600, None),
        (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', -32600, None),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600, None),
        (b'{"jsonrpc":"2.0","id":[1],"method":"ping"}', -32600, None),
        (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', -32600, None),
        (b'{"jsonrpc":"2.0","id":5,"method":7}', -32600, 5),
        (b'{"jsonrpc":"2.0","id":5}', -32600, 5),
        (b'{"jsonrpc":"2.0","id":5,"method":"ping","params":[]}', -32602, 5),
        (b'{"jsonrpc":"2.0","id":5,"method":"no/such"}', -32601, 5),
        (b'{"jsonrpc":"2.0","id":"x","method":"tools/call","params":{}}', -32602, "x"),
        (CALL + b'{"name":"no_such"}}', -32602, 5),
        (CALL + b'{"name":"list_files","arguments":[]}}', -32602, 5),
    ],
)
def test_a_malformed_message_gets_its_error_and_the_server_goes_on(
    server: ServerProcess, line: bytes, code: int, request_id: object
) -> None:
    server.send_bytes(line + b"\n")

    message = server.receive()
    assert (message["error"]["code"], message["id"]) == (code, request_id)
    assert server.is_alive()


def test_deep_nesting_and_endless_numbers_do_not_end_the_server(server: ServerProcess) -> None:
    for value in (b"[" * 100_000, b"[" * 100_000 + b"]" * 100_000, b"1" * 1_000_000, b"1e400"):
        server.send_bytes(b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"n":' + value + b"}}\n")
        server.receive()
    assert server.is_alive()


def test_blank_lines_answers_and_unknown_notifications_get_no_answer(server: ServerProcess) -> None:
    server.send_bytes(b"\n  \n\r\n")
    server.send({"jsonrpc": "2.0", "id": 77, "result": {}})
    server.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
    server.send({"jsonrpc": "2.0", "method": "notifications/no_such", "params": {}})
    server.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 12345}})
    server.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": {}}})

    request_id = server.begin("ping")

    assert server.receive()["id"] == request_id


def test_a_request_of_ten_megabytes_is_served(server: ServerProcess, workspace: Path) -> None:
    content = "0123456789" * 1_000_000
    assert not server.call("write_file", path="big.txt", content=content).is_error
    assert (workspace / "big.txt").read_text() == content


def test_a_line_beyond_the_limit_is_skipped_and_answered_by_its_id(server: ServerProcess) -> None:
    server.send_bytes(b'{"jsonrpc":"2.0","id":41,"method":"tools/call","params":{"id":9,"x":"')
    for _ in range(20):
        server.send_bytes(b"a" * 1024 * 1024)
    server.send_bytes(b'"}}\n')

    message = server.receive()
    assert (message["id"], message["error"]["code"]) == (41, -32600)
    assert _memory_megabytes(server) < 60
    assert server.is_alive()


def test_a_long_line_whose_id_cannot_be_seen_is_answered_without_one(server: ServerProcess) -> None:
    server.send_bytes(b'{"params":{"id":9,"x":"' + b"a" * (17 * 1024 * 1024) + b'"},"id":41}\n')
    assert server.receive()["id"] is None


def test_an_id_may_be_a_string_or_a_number_and_comes_back_as_it_was(server: ServerProcess) -> None:
    for request_id in ("1", 1, -5, 2**60, "ünï"):
        server.send({"jsonrpc": "2.0", "id": request_id, "method": "ping"})
        assert server.receive()["id"] == request_id


def test_a_bad_argument_is_an_answer_the_model_can_act_on(server: ServerProcess) -> None:
    wrong: list[tuple[str, Json, str]] = [
        ("read_file", {}, "path is missing"),
        ("read_file", {"path": 5}, "path must be a string"),
        ("read_file", {"path": ""}, "path must not be empty"),
        ("read_file", {"path": "a", "offset": -1}, "offset must be a whole number"),
        ("read_file", {"path": "a", "offset": 2**80}, "offset must be a whole number"),
        ("read_file", {"path": "a", "limit": True}, "limit must be a whole number"),
        ("read_file", {"path": "a", "encoding": "rot13"}, "encoding must be one of"),
        ("read_file", {"path": "a", "mode": "r"}, "There is no argument mode"),
        ("list_files", {"recursive": "yes"}, "recursive must be true or false"),
        ("execute_command", {"command": "true", "timeout_seconds": 4000}, "timeout_seconds must be a number"),
        ("execute_command", {"command": "true", "env": {"A": 1}}, "env.A must be a string"),
        ("execute_command", {"command": "true", "env": "A=1"}, "env must be an object"),
        ("edit_file", {"path": "a", "edits": []}, "edits must be a list"),
        ("edit_file", {"path": "a", "edits": [{"old_text": "x"}]}, "edits[0].new_text is missing"),
        ("write_file", {"path": "a", "content": "\ud800"}, "not valid Unicode"),
        ("read_file", {"path": "\ud800"}, "not valid Unicode"),
    ]
    for name, arguments, hint in wrong:
        result = server.call(name, **arguments)
        assert result.is_error
        assert hint in result.text


def test_every_result_tells_how_full_the_workspace_is(server: ServerProcess) -> None:
    for result in (server.call("list_files"), server.call("read_file", path="missing")):
        usage = result.result["_meta"]["io.mcp-orchestrator/workspace"]
        assert usage["bytes"] >= 0
        assert usage["files"] >= 0


def test_the_end_of_input_ends_the_server_after_the_answers(server: ServerProcess) -> None:
    request_id = server.begin("ping")
    assert server.process.stdin is not None
    server.process.stdin.close()

    assert server.answer(request_id)["result"] == {}
    with pytest.raises(EOFError):
        server.receive()
    assert server.process.wait(5) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_end_ends_the_server(server: ServerProcess, number: int) -> None:
    assert server.is_alive()
    server.process.send_signal(number)
    assert server.process.wait(5) == 0


def test_answers_are_pure_ascii_lines(server: ServerProcess, workspace: Path) -> None:
    (workspace / "text").write_text("\u2028 ☃ \x85\n")
    assert server.call("read_file", path="text").first == "\u2028 ☃ \x85\n"
    server.begin_call("read_file", path="text")
    assert server.process.stdout is not None
    line = server.process.stdout.readline()
    assert line.isascii()
    assert json.loads(line)


def _memory_megabytes(server: ServerProcess) -> float:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(peak.split()[1]) / 1024
