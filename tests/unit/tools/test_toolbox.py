"""The connection to a server that misbehaves in every way the protocol allows and forbids."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_orchestrator.sandbox.backend import Sandbox
from mcp_orchestrator.tools.bridge import BridgeLimits
from mcp_orchestrator.tools.results import CallTimedOut, ToolOutput, ToolResult, ToolsLost, ToolsUnavailable
from mcp_orchestrator.tools.toolbox import Toolbox, open_toolbox
from tests.support.streams import Answer, ScriptedSandbox, ScriptedStreams, line, result, text

QUICK = 2.0


@asynccontextmanager
async def connected(
    answer: Answer, limits: BridgeLimits = BridgeLimits()
) -> AsyncIterator[tuple[Toolbox, ScriptedStreams]]:
    streams = ScriptedStreams(answer)
    async with open_toolbox(cast("Sandbox", ScriptedSandbox(streams)), limits=limits) as toolbox:
        yield toolbox, streams


async def said(answer: Answer, limits: BridgeLimits = BridgeLimits()) -> str:
    """What a call to a server that answers like this brings."""
    async with connected(answer, limits) as (toolbox, _):
        return (await toolbox.run("echo", {}, QUICK)).text


async def test_a_call_brings_the_answer_of_the_server() -> None:
    async with connected(lambda request: [text(request, request["params"]["arguments"]["word"])]) as (
        toolbox,
        _,
    ):
        answer = await toolbox.run("echo", {"word": "hallo"}, QUICK)

    assert answer == ToolResult(content=({"type": "text", "text": "hallo"},))


async def test_noise_before_within_and_after_an_answer_is_ignored() -> None:
    noise = [b"Starting server...\n", b"\xff\xfe\x80\n", b"\x00\n", b"\r", b"{]\n"]

    assert await said(lambda request: [*noise, text(request, "yes"), *noise]) == "yes"


async def test_answers_to_other_questions_do_not_answer_this_one() -> None:
    def answer(request: dict[str, Any]) -> list[bytes]:
        foreign = [1, "1", 0, "other", request["id"] + "0", request["id"].upper() + "x"]
        return [*(line(id=other, result={"content": []}) for other in foreign), text(request, "mine")]

    assert await said(answer) == "mine"


async def test_the_first_of_two_answers_wins() -> None:
    assert await said(lambda request: [text(request, "first") + text(request, "second")]) == "first"


async def test_an_answer_sent_before_the_question_is_not_taken_for_it() -> None:
    async with connected(lambda request: [text(request, "after")]) as (toolbox, streams):
        epoch, number = str(streams.received[-1]["id"]).rsplit("-", 1)
        streams.say(text({"id": f"{epoch}-{int(number) + 1}"}, "before"))
        await until_read(toolbox, streams)

        answer = await toolbox.run("echo", {}, QUICK)

    assert answer.text == "after"


async def until_read(toolbox: Toolbox, streams: ScriptedStreams) -> None:
    while not streams._outputs.empty():
        await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_request_ids_are_never_used_again_by_a_later_connection() -> None:
    seen: list[str] = []
    for _ in range(3):
        async with connected(lambda request: [text(request, "")]) as (toolbox, streams):
            await toolbox.run("echo", {}, QUICK)
        seen += [message["id"] for message in streams.received if "id" in message]

    assert len(seen) == len(set(seen)) == 9


@pytest.mark.parametrize(
    "members",
    [{"result": {}, "error": {"code": 1, "message": "m"}}, {}, {"result": 5}, {"result": {"content": 7}}],
    ids=repr,
)
async def test_a_malformed_answer_is_an_error_of_that_call_and_the_next_call_works(
    members: dict[str, Any],
) -> None:
    answers = iter([members, None])

    def answer(request: dict[str, Any]) -> list[bytes]:
        faulty = next(answers)
        return [line(id=request["id"], **faulty) if faulty is not None else text(request, "fine")]

    async with connected(answer) as (toolbox, _):
        assert (await toolbox.run("echo", {}, QUICK)).is_error
        assert (await toolbox.run("echo", {}, QUICK)).text == "fine"


async def test_an_answer_above_the_line_limit_is_an_error_and_the_session_lives() -> None:
    sizes = iter([5_000_000, 10])

    def answer(request: dict[str, Any]) -> list[bytes]:
        data = text(request, "x" * next(sizes))
        return [data[start : start + 65_536] for start in range(0, len(data), 65_536)]

    async with connected(answer, BridgeLimits(line_bytes=1_000_000)) as (toolbox, _):
        first = await toolbox.run("echo", {}, QUICK)
        second = await toolbox.run("echo", {}, QUICK)

    assert first.is_error
    assert "5000" in first.text
    assert second.text == "x" * 10


async def test_ten_megabytes_pass_in_both_directions() -> None:
    big = "ä" * 5_000_000

    async with connected(lambda request: [text(request, request["params"]["arguments"]["text"])]) as (
        toolbox,
        _,
    ):
        answer = await toolbox.run("echo", {"text": big}, 30)

    assert answer.text == big


async def test_a_line_without_end_ends_the_connection() -> None:
    limits = BridgeLimits(line_bytes=1000, skipped_bytes=100_000)

    with pytest.raises(ToolsLost, match="line of more than 100000 bytes"):
        await said(lambda _: [b"x" * 10_000] * 20, limits)


@pytest.mark.parametrize(
    "flood",
    [
        line(method="notifications/message", params={"level": "info", "data": "x"}),
        line(method="notifications/tools/list_changed"),
        line(method="notifications/progress", params={"progressToken": "nobody", "progress": 1}),
        line(id=5, method="sampling/createMessage", params={"messages": [], "maxTokens": 1}),
        line(id="stray", result={}),
    ],
    ids=lambda flood: flood[16:60].decode(),
)
async def test_a_flood_of_what_nobody_asked_for_ends_the_connection(flood: bytes) -> None:
    limits = BridgeLimits(unsolicited_messages=200, unsolicited_messages_per_second=10)

    with pytest.raises(ToolsLost, match="floods"):
        await said(lambda _: [flood] * 1000, limits)


async def test_endless_noise_ends_the_connection() -> None:
    with pytest.raises(ToolsLost, match="no JSON-RPC"):
        await said(lambda _: [b"noise\n"] * 2000)


async def test_stderr_is_kept_as_a_tail_of_bounded_size() -> None:
    async with connected(lambda request: [text(request, "")]) as (toolbox, streams):
        for number in range(5_000):
            streams.say(f"{number:0100}\n".encode(), source="stderr")
        await toolbox.run("echo", {}, QUICK)

    assert toolbox.stderr_tail().endswith("4999\n")
    assert len(toolbox.stderr_tail()) <= BridgeLimits().stderr_bytes


async def test_a_server_that_dies_in_the_middle_of_a_message_loses_the_call() -> None:
    async with connected(lambda request: [text(request, "half")[:-9]]) as (toolbox, streams):
        streams.say(b"fatal: out of cheese\n", source="stderr")
        asyncio.get_running_loop().call_soon(streams.die)

        with pytest.raises(ToolsLost, match="out of cheese"):
            await toolbox.run("echo", {}, QUICK)
        with pytest.raises(ToolsLost):
            await toolbox.run("echo", {}, QUICK)


async def test_a_call_that_takes_too_long_is_cancelled_and_its_late_answer_dropped() -> None:
    late: list[dict[str, Any]] = []

    def answer(request: dict[str, Any]) -> list[bytes]:
        late.append(request)
        return [] if len(late) == 1 else [text(late[0], "late"), text(request, "in time")]

    async with connected(answer) as (toolbox, streams):
        with pytest.raises(CallTimedOut):
            await toolbox.run("echo", {}, 0.05)
        second = await toolbox.run("echo", {}, QUICK)

    assert second.text == "in time"
    cancelled = [
        m["params"]["requestId"] for m in streams.received if m["method"] == "notifications/cancelled"
    ]
    assert cancelled == [late[0]["id"]]


class SlowReader(ScriptedStreams):
    """A server that takes half of each message and then waits to be let go on."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer)
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    async def write(self, data: bytes) -> None:
        half = len(data) // 2
        self.raw += data[:half]
        await self.goes_on.wait()
        self.raw += data[half:]
        for received in filter(None, data.split(b"\n")):
            self._hear(json.loads(received))


@asynccontextmanager
async def slowly_connected(**limits: float) -> AsyncIterator[tuple[Toolbox, SlowReader]]:
    streams = SlowReader(lambda request: [text(request, "read")])
    sandbox = cast("Sandbox", ScriptedSandbox(streams))
    async with open_toolbox(sandbox, limits=BridgeLimits(**limits)) as toolbox:  # type: ignore[arg-type]
        yield toolbox, streams


async def test_a_server_that_does_not_read_loses_the_connection() -> None:
    async with slowly_connected(write_seconds=0.05) as (toolbox, streams):
        streams.goes_on.clear()
        with pytest.raises(ToolsLost, match="did not read"):
            await toolbox.run("echo", {}, QUICK)


async def test_a_line_that_was_begun_is_finished_although_its_call_was_cancelled() -> None:
    async with slowly_connected() as (toolbox, streams):
        streams.goes_on.clear()
        cancelled = asyncio.create_task(toolbox.run("echo", {"word": "first"}, QUICK))
        while b"tools/call" not in streams.raw:
            await asyncio.sleep(0)
        cancelled.cancel()
        asyncio.get_running_loop().call_soon(streams.goes_on.set)
        await asyncio.gather(cancelled, return_exceptions=True)

        assert (await toolbox.run("echo", {"word": "second"}, QUICK)).text == "read"

    assert cancelled.cancelled()
    assert all(json.loads(line) for line in filter(None, streams.raw.split(b"\n")))


async def test_the_deadline_of_a_call_holds_while_its_words_are_not_read() -> None:
    async with slowly_connected() as (toolbox, streams):
        streams.goes_on.clear()
        asyncio.get_running_loop().call_later(1.5, streams.goes_on.set)
        with pytest.raises(CallTimedOut):
            await toolbox.run("echo", {}, 0.1)


async def test_the_words_of_a_running_tool_come_in_order_and_before_its_result() -> None:
    def answer(request: dict[str, Any]) -> list[bytes]:
        token = request["params"]["_meta"]["progressToken"]

        def progress(number: int, stream: str) -> bytes:
            meta = {"io.mcp-orchestrator/stream": stream}
            params = {"progressToken": token, "progress": number, "message": str(number), "_meta": meta}
            return line(method="notifications/progress", params=params)

        return [*(progress(n, "stderr" if n % 2 else "stdout") for n in range(50)), text(request, "end")]

    async with connected(answer) as (toolbox, _), aclosing(toolbox.call("echo", {}, QUICK)) as updates:
        *outputs, last = [update async for update in updates]

    assert outputs == [ToolOutput(str(n), "stderr" if n % 2 else "stdout", n) for n in range(50)]
    assert isinstance(last, ToolResult)
    assert last.text == "end"


async def test_leaving_a_call_early_cancels_it_at_the_server() -> None:
    def answer(request: dict[str, Any]) -> list[bytes]:
        token = request["params"]["_meta"]["progressToken"]
        return [line(method="notifications/progress", params={"progressToken": token, "progress": 1})]

    async with connected(answer) as (toolbox, streams):
        updates = toolbox.call("echo", {}, QUICK)
        assert isinstance(await anext(updates), ToolOutput)
        await updates.aclose()

    assert streams.received[-1]["method"] == "notifications/cancelled"


@pytest.mark.parametrize("method", ["sampling/createMessage", "elicitation/create", "roots/list", "no/such"])
async def test_what_a_server_asks_of_us_is_refused(method: str) -> None:
    async with connected(lambda request: [text(request, "")]) as (_toolbox, streams):
        streams.say(line(id=77, method=method, params={}))
        async with asyncio.timeout(QUICK):
            while not [m for m in streams.received if m.get("id") == 77]:
                await asyncio.sleep(0)
        refusal = next(m for m in streams.received if m.get("id") == 77)

    assert "error" in refusal
    assert "result" not in refusal


async def test_a_change_of_the_tool_list_is_told() -> None:
    async with connected(lambda request: [text(request, "")]) as (toolbox, streams):
        streams.say(line(method="notifications/tools/list_changed"))
        async with asyncio.timeout(QUICK), aclosing(toolbox.changes()) as changes:
            assert [tool.name for tool in (await anext(changes)).tools] == ["echo"]


async def test_a_server_that_never_answers_is_given_up_after_the_start_deadline() -> None:
    class Mute(ScriptedStreams):
        def _hear(self, message: dict[str, Any]) -> None:
            self.received.append(message)

    with pytest.raises(ToolsUnavailable, match="did not answer"):
        async with open_toolbox(cast("Sandbox", ScriptedSandbox(Mute(lambda _: []))), start_seconds=0.1):
            pass


async def test_a_second_holder_of_the_streams_first_ends_the_half_line_of_the_first() -> None:
    streams = ScriptedStreams(lambda request: [text(request, "")])
    streams.is_fresh = False
    async with open_toolbox(cast("Sandbox", ScriptedSandbox(streams))):
        pass

    assert streams.raw.startswith(b"\n{")


async def test_a_paged_list_is_read_to_its_end() -> None:
    class Paging(ScriptedStreams):
        def _hear(self, message: dict[str, Any]) -> None:
            if message["method"] != "tools/list":
                super()._hear(message)
                return
            page = int(message["params"].get("cursor") or 0)
            more = {"nextCursor": str(page + 1)} if page < 4 else {}
            tools = [{"name": f"tool_{page}", "inputSchema": {"type": "object"}}]
            self.say(result(message, tools=tools, ttlMs=0, cacheScope="public", **more))

    async with open_toolbox(cast("Sandbox", ScriptedSandbox(Paging(lambda _: [])))) as toolbox:
        assert [tool.name for tool in toolbox.catalogue.tools] == [f"tool_{n}" for n in range(5)]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(min_value=1), max_size=30))
def test_however_an_answer_is_cut_it_arrives(places: list[int]) -> None:
    def answer(request: dict[str, Any]) -> list[bytes]:
        data = b"noise\n" + text(request, "Grüße \N{GRINNING FACE}") + b"more"
        edges = [0, *sorted(place % len(data) for place in places), len(data)]
        return [data[start:end] for start, end in itertools.pairwise(edges)]

    assert asyncio.run(said(answer)) == "Grüße \N{GRINNING FACE}"


async def test_p15_odd_content_comes_up_as_plain_data() -> None:
    odd = [
        {"type": "image", "mimeType": "text/html", "data": "PHNjcmlwdD4="},
        {"type": "resource_link", "uri": "javascript:alert(1)", "name": "x"},
        {"type": "text", "text": "<script>alert(1)</script>"},
    ]
    async with connected(lambda request: [result(request, content=odd)]) as (toolbox, _):
        answer = await toolbox.run("echo", {}, QUICK)

    assert [dict(part) for part in answer.content] == odd
    assert answer.text == "<script>alert(1)</script>"
