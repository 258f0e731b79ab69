"""Lines come out whole however the bytes were cut."""

import itertools
import time
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from mcp_orchestrator.tools.lines import LineAssembler, OversizedLine

MOST = 64


def fed(pieces: list[bytes], most: int = MOST) -> list[bytearray | OversizedLine]:
    assembler = LineAssembler(most)
    return [line for piece in pieces for line in assembler.feed(piece)]


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """`data` in pieces, some of them empty, that join to it."""
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


@given(st.binary(max_size=400), st.lists(st.integers(min_value=0), max_size=40))
def test_every_way_of_cutting_a_stream_gives_the_same_lines(data: bytes, places: list[int]) -> None:
    assert fed(cut(data, places)) == fed([data])


@given(st.lists(st.text(max_size=12), max_size=12), st.lists(st.integers(min_value=0), max_size=40))
def test_characters_cut_in_two_are_whole_again(texts: list[str], places: list[int]) -> None:
    lines = [text.replace("\n", "").replace("\r", "") for text in texts]
    data = "".join(line + "\n" for line in lines).encode()

    assert [line.decode() for line in fed(cut(data, places)) if isinstance(line, bytearray)] == lines


def test_a_line_above_the_limit_is_counted_and_not_kept() -> None:
    long = b"head" + b"x" * 10_000 + b"tail"

    oversized, after = fed([*cut(long, [3, 50, 70, 9_000]), b"\nnext\n"])

    assert isinstance(oversized, OversizedLine)
    assert oversized.length == len(long)
    assert oversized.head.startswith(b"head")
    assert oversized.tail.endswith(b"tail")
    assert after == bytearray(b"next")


def test_an_endless_line_holds_no_more_than_the_limit() -> None:
    assembler = LineAssembler(MOST)
    for _ in range(10_000):
        assembler.feed(b"x" * 1000)

    assert assembler.pending_bytes == 10_000_000
    assert len(assembler._kept) <= MOST


def test_the_time_for_a_large_line_grows_in_proportion_to_it() -> None:
    def seconds(size: int) -> float:
        pieces = [b"x" * 4096] * (size // 4096) + [b"\n"]
        best = 1.0
        for _ in range(5):
            started = time.process_time()
            fed(pieces, most=size * 2)
            best = min(best, time.process_time() - started)
        return best

    # Twice linear would be 16; the quadratic assembly this guards against gives 64 and more.
    assert seconds(32 * 1024 * 1024) < 24 * max(seconds(4 * 1024 * 1024), 0.0005)


def test_a_line_in_tiny_pieces_takes_no_more_memory_than_in_one() -> None:
    assembler = LineAssembler(400_000)
    tracemalloc.start()
    try:
        for _ in range(100_000):
            assembler.feed(b"xx")
        assert tracemalloc.get_traced_memory()[1] < 800_000
    finally:
        tracemalloc.stop()
