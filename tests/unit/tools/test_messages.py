"""What a hostile server writes becomes a message, an error answer, or nothing; never a crash."""

import contextlib
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from mcp_orchestrator.tools.lines import OversizedLine
from mcp_orchestrator.tools.messages import NotAMessage, parse_message, unread_answer


def answer(**members: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **members}).encode()


def test_the_three_kinds_of_messages_are_told_apart() -> None:
    assert isinstance(parse_message(answer(id="a", result={})), JSONRPCResponse)
    assert isinstance(parse_message(answer(id=1, error={"code": 1, "message": "no"})), JSONRPCError)
    assert isinstance(parse_message(answer(id=1, method="ping")), JSONRPCRequest)
    assert isinstance(parse_message(answer(method="notifications/progress", params={})), JSONRPCNotification)


@pytest.mark.parametrize(
    "line",
    [
        b"Server listening on stdio",
        b"\xff\xfe\x00",
        b"\xef\xbb\xbf" + answer(id=1, result={}),
        answer(id=1, result={}).decode().encode("utf-16"),
        b"\x00",
        b"null",
        b"17",
        b"[" * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
        b'{"jsonrpc":"2.0","id":1,"result":{"n":' + b"9" * 1_000_000 + b"}}",
        b'{"jsonrpc":"2.0","id":1,"result":{"n":NaN}}',
        b'{"jsonrpc":"2.0","id":1,"result":{"n":Infinity}}',
        b'{"jsonrpc":"2.0","id":1,"result":{"n":1e400}}',
        b'{"jsonrpc":"2.0","id":1,"id":2,"result":{}}',
        b"[" + answer(id=1, result={}) + b"]",
        answer(id=None, result={}),
        answer(id=True, result={}),
        answer(id=1.5, result={}),
        answer(result={}),
        answer(method=7),
        b'{"id":1,"result":{}}',
        b'{"jsonrpc":"1.0","id":1,"result":{}}',
    ],
    ids=lambda line: repr(line[:40]),
)
def test_what_is_no_message_is_refused_quickly(line: bytes) -> None:
    started = time.process_time()
    with pytest.raises(NotAMessage):
        parse_message(line)
    assert time.process_time() - started < 1


@pytest.mark.parametrize(
    "members",
    [
        {"result": {}, "error": {"code": 1, "message": "x"}},
        {},
        {"result": "text"},
        {"result": None},
        {"error": "text"},
        {"error": {"code": "x"}},
        {"result": {"content": [{}] * 1001}},
    ],
    ids=repr,
)
def test_a_faulty_answer_is_an_error_for_the_call_it_answers(members: dict[str, object]) -> None:
    message = parse_message(answer(id="call", **members))

    assert isinstance(message, JSONRPCError)
    assert message.id == "call"


def test_a_million_values_are_an_error_for_the_call_before_they_are_built() -> None:
    line = answer(id=1, result={"content": [[]] * 1_000_000})

    started = time.process_time()
    message = parse_message(line)

    assert time.process_time() - started < 1
    assert isinstance(message, JSONRPCError)
    assert message.id == 1


@pytest.mark.parametrize(
    "unit", [b'\\"', b'""', b'"",', b"[]", b"\\\\", b"\\", b'"\\"', b'{"":', b"\\u0041", b"[", b'"a":1,']
)
def test_no_large_line_takes_long_whatever_it_is_made_of(unit: bytes) -> None:
    line = b'{"jsonrpc":"2.0","x":"' + unit * (16 * 1024 * 1024 // len(unit))

    started = time.process_time()
    with pytest.raises(NotAMessage):
        parse_message(line)
    assert time.process_time() - started < 1


def test_ten_megabytes_of_text_full_of_commas_and_brackets_pass() -> None:
    text = '{"a",[1,2],"b"}\n' * 700_000

    message = parse_message(answer(id=1, result={"text": text}))

    assert isinstance(message, JSONRPCResponse)
    assert message.result["text"] == text


def test_half_a_surrogate_pair_becomes_a_replacement_character() -> None:
    message = parse_message(rb'{"jsonrpc":"2.0","id":1,"result":{"text":"a\ud83dz \ud83d\ude00"}}')

    assert isinstance(message, JSONRPCResponse)
    assert message.result["text"] == "a\N{REPLACEMENT CHARACTER}z \N{GRINNING FACE}"


@given(st.binary(max_size=300))
def test_no_bytes_at_all_crash_the_parser(line: bytes) -> None:
    with contextlib.suppress(NotAMessage):
        parse_message(line)


@pytest.mark.parametrize(
    ("head", "tail", "expected"),
    [
        (b'{"jsonrpc":"2.0","id":"e-1","result":{', b"}}", "e-1"),
        (b'{"result":{"text":"', b'"},"jsonrpc":"2.0","id":7}', 7),
        (b"xxxx", b"xxxx", None),
    ],
)
def test_an_unread_answer_becomes_an_error_for_its_request(
    head: bytes, tail: bytes, expected: object
) -> None:
    error = unread_answer(OversizedLine(10**8, head, tail), "too many")

    assert (error.id if error else None) == expected
