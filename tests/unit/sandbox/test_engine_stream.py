"""The engine's multiplexed stream comes apart rightly however it was cut."""

import itertools
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_orchestrator.sandbox.backend import Output, SandboxStreamBroken
from mcp_orchestrator.sandbox.docker.stream import FrameDecoder


def frame(source: int, payload: bytes) -> bytes:
    return bytes([source, 0, 0, 0]) + len(payload).to_bytes(4, "big") + payload


def said(outputs: list[Output], source: str) -> bytes:
    return b"".join(output.data for output in outputs if output.source == source)


frames = st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=50)), max_size=12)


@given(frames, st.lists(st.integers(min_value=0), max_size=60))
def test_every_way_of_cutting_gives_each_stream_its_bytes(
    parts: list[tuple[int, bytes]], places: list[int]
) -> None:
    wire = b"".join(frame(source, payload) for source, payload in parts)
    edges = [0, *sorted(place % (len(wire) + 1) for place in places), len(wire)]
    decoder = FrameDecoder()

    outputs = [output for start, end in itertools.pairwise(edges) for output in decoder.feed(wire[start:end])]

    assert said(outputs, "stdout") == b"".join(payload for source, payload in parts if source == 1)
    assert said(outputs, "stderr") == b"".join(payload for source, payload in parts if source == 2)


@pytest.mark.parametrize(
    "header",
    [
        b"\x00\0\0\0\0\0\0\x05",
        b"\x03\0\0\0\0\0\0\x05",
        b"\x07\0\0\0\0\0\0\x05",
        b"\x01\0\0\x01\0\0\0\x05",
        b"\x01\0\0\0\xff\xff\xff\xff",
        b"HTTP/1.1",
    ],
)
def test_a_header_that_no_engine_writes_is_refused_without_an_allocation(header: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(SandboxStreamBroken):
            FrameDecoder().feed(header + b"hello")
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_part_of_a_frame_is_passed_on_before_the_rest_came() -> None:
    assert FrameDecoder().feed(frame(1, b"x" * 100)[:20]) == [Output("stdout", b"x" * 12)]


def test_an_empty_frame_says_nothing() -> None:
    assert FrameDecoder().feed(frame(1, b"") + frame(2, b"e")) == [Output("stderr", b"e")]
