"""The file tools attacked through the whole way, in real sandboxes. The numbers are those of the threat catalogue."""

import asyncio

import pytest

from mcp_orchestrator.tools.results import ToolResult
from mcp_orchestrator.tools.toolbox import Toolbox
from tests.support.attacks import attack, shell
from tests.support.workshop import Workshop


async def read(toolbox: Toolbox, path: str, **options: object) -> ToolResult:
    return await toolbox.run("read_file", {"path": path, **options}, 20)


async def test_f01_no_path_leads_out_of_the_workspace(workshop: Workshop) -> None:
    ways = ["../etc/passwd", "../../etc/passwd", "/etc/passwd", "//etc/passwd", "./.././../etc/passwd"]
    ways += [
        "/workspace/../etc/passwd",
        "/workspace/x/../../etc/passwd",
        "/proc/self/environ",
        "/workspace2/x",
    ]
    async with workshop.toolbox() as toolbox:
        await shell(toolbox, "mkdir x")
        read_ones = [await read(toolbox, way) for way in ways]
        written = [await toolbox.run("write_file", {"path": way, "content": "x"}, 20) for way in ways]

    assert [way for way, answer in zip(ways, read_ones, strict=True) if not answer.is_error] == []
    assert [way for way, answer in zip(ways, written, strict=True) if not answer.is_error] == []
    assert not any("root:" in answer.text for answer in read_ones)


async def test_f02_f04_links_and_special_files_are_refused_without_waiting(workshop: Workshop) -> None:
    async with workshop.toolbox() as toolbox:
        await attack(
            toolbox,
            "os.symlink('/etc/passwd', 'link'); os.symlink('/', 'root'); os.mkfifo('pipe')\n"
            "s = socket.socket(socket.AF_UNIX); s.bind('/workspace/socket'); result = True",
        )
        answers = [await read(toolbox, name) for name in ("link", "root/etc/passwd", "pipe", "socket")]
        written = [
            await toolbox.run("write_file", {"path": name, "content": "x"}, 20)
            for name in ("root/tmp/x", "root/workspace/x")
        ]

    assert all(answer.is_error for answer in [*answers, *written])


async def test_f03_a_link_swapped_in_at_the_right_moment_leads_nowhere(workshop: Workshop) -> None:
    swapping = (
        "mkdir -p d; echo inside > d/passwd; ln -s /etc e; python3 -c '\n"
        "import os, time\n"
        "until = time.monotonic() + 4\n"
        "while time.monotonic() < until:\n"
        '    os.rename("d", "keep"); os.rename("e", "d")\n'
        '    os.rename("d", "e"); os.rename("keep", "d")\''
    )
    async with workshop.toolbox() as toolbox:
        racing = asyncio.create_task(shell(toolbox, swapping, 20))
        seen: list[str] = []
        while not racing.done():
            seen.append((await read(toolbox, "d/passwd")).text)
        await racing

    assert len(seen) > 50
    assert not any("root:" in text for text in seen)


async def test_f05_a_listed_name_can_be_given_back_however_odd_it_is(workshop: Workshop) -> None:
    async with workshop.toolbox() as toolbox:
        await attack(
            toolbox,
            "names = ['new\\nline', 'esc\\x1b[31m', 'bidi\\u202ex', 'back\\\\slash', 'n' * 255]\n"
            "for n in names: open(n, 'w').write('content of it')\n"
            "result = True",
        )
        listed = (await toolbox.run("list_files", {}, 20)).text
        names = [line.split(maxsplit=2)[-1] for line in listed.splitlines() if line.startswith("file")]
        answers = [await read(toolbox, name) for name in names]

    assert listed.replace("\n", "").isprintable()
    assert len(names) == 5
    assert [answer.text for answer in answers if "content of it" not in answer.text] == []


async def test_f06_a_directory_and_the_servers_own_code_cannot_be_written(workshop: Workshop) -> None:
    async with workshop.toolbox() as toolbox:
        await shell(toolbox, "mkdir folder")
        onto = [
            await toolbox.run("write_file", {"path": path, "content": "x"}, 20)
            for path in ("folder", ".", "/opt/mcp/workspace_server/__main__.py")
        ]
        await toolbox.run("write_file", {"path": "plain", "content": "x"}, 20)
        mode = await attack(toolbox, "result = oct(os.stat('/workspace/plain').st_mode & 0o7777)")

    assert all(answer.is_error for answer in onto)
    assert mode == "0o644"


async def test_f07_f08_huge_listings_and_files_are_capped_and_say_so(workshop: Workshop) -> None:
    async with workshop.toolbox() as toolbox:
        await attack(
            toolbox,
            "os.mkdir('many')\n"
            "for n in range(3000): open(f'many/{n}', 'w').close()\n"
            "open('sparse', 'wb').truncate(100_000_000); os.symlink('.', 'loop'); result = True",
            seconds=60,
        )
        listing = await toolbox.run("list_files", {"path": ".", "recursive": True}, 30)
        sparse = await read(toolbox, "sparse", encoding="base64")
        beyond = await read(toolbox, "sparse", encoding="base64", offset=2**52)
        negative = await read(toolbox, "sparse", offset=-1)

    assert len(listing.text.splitlines()) < 1_100
    assert "more" in listing.text
    assert len(sparse.text) < 1_000_000
    assert len(beyond.text) < 1_000
    assert negative.is_error


@pytest.mark.parametrize("command", ["true\0false", "x" * 3_000_000], ids=["nul", "3 MB"])
async def test_f10_an_impossible_command_is_refused(workshop: Workshop, command: str) -> None:
    async with workshop.toolbox() as toolbox:
        refused = await shell(toolbox, command)
        after = await shell(toolbox, "printf '%s' '-rf; $(id) `id` & |'")

    assert refused.is_error
    assert "-rf; $(id) `id` & |" in after.text
