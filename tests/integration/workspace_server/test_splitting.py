"""However the bytes of the client are cut on their way, the server answers the same."""

import importlib
import json
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.integration.workspace_server.client import SERVER, ServerProcess

MESSAGES = [
    b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n',
    b"\n",
    b'{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"read_file","arguments":{"path":"\xe2\x98\x83"}}}\n',
    b"{broken\n",
    b'{"jsonrpc":"2.0","method":"notifications/initialized"}\r\n',
    '{"jsonrpc":"2.0","id":"ü","method":"no/such"}\n'.encode(),
]
STREAM = b"".join(MESSAGES)
ANSWERS = 4


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("workspace")) as running:
        yield running


@given(cuts=st.lists(st.integers(0, len(STREAM)), max_size=12))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_cutting_of_the_stream_gives_the_same_answers(
    shared_server: ServerProcess, cuts: list[int]
) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    for number, edge in enumerate(edges[1:]):
        shared_server.send_bytes(STREAM[edges[number] : edge])

    answers = [shared_server.receive() for _ in range(ANSWERS)]

    assert [answer["id"] for answer in answers] == [1, 2, None, "ü"]
    assert answers[0]["result"] == {}
    assert "No such file" in answers[1]["result"]["content"][0]["text"]
    assert answers[2]["error"]["code"] == -32700
    assert answers[3]["error"]["code"] == -32601


@given(data=st.binary(max_size=400), cuts=st.lists(st.integers(0, 400), max_size=6))
def test_the_lines_of_any_bytes_are_those_between_the_line_ends(data: bytes, cuts: list[int]) -> None:
    reader = module("wire").LineReader()
    edges = [0, *sorted(cuts), len(data)]
    lines = [
        line
        for number, edge in enumerate(edges[1:])
        for line, is_whole in reader.feed(data[edges[number] : edge])
        if is_whole
    ]
    assert lines == data.split(b"\n")[:-1]


SIMPLE = (
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False, allow_infinity=False)
)
VALUES = st.recursive(SIMPLE, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))


@given(value=VALUES)
@settings(deadline=None)
def test_our_json_is_the_json_of_the_standard_library(value: object) -> None:
    jsontext = module("jsontext")
    assert json.loads(jsontext.dumps(value)) == value
    assert jsontext.loads(json.dumps(value, indent=1)) == value


@cache
def module(name: str) -> Any:
    """One module of the server, which is no package: it runs as a directory."""
    sys.path.insert(0, str(SERVER))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(SERVER))
