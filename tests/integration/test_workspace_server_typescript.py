"""The workspace server, spoken to by both generations of the official TypeScript SDK."""

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.node import node_environment

ROOT = Path(__file__).parents[2]
SERVER = ROOT / "images" / "sandbox" / "workspace_server"
CLIENT = Path(__file__).parent / "typescript_client"
TOOLS = ["read_file", "write_file", "edit_file", "list_files", "search_files", "execute_command"]

# Of each way to connect, the version that must come out of it; the first generation does not tell.
MODES = {"v1": None, "legacy": "2025-11-25", "auto": "2026-07-28", "2026-07-28": "2026-07-28"}


@pytest.fixture(scope="session")
def typescript_client() -> Path:
    """The client with its packages, installed once for each lock file."""
    lock = hashlib.sha256((CLIENT / "package-lock.json").read_bytes()).hexdigest()[:16]
    folder = ROOT / ".cache" / f"typescript-client-{lock}"
    if not (folder / "node_modules" / ".package-lock.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(CLIENT / name, folder)
        command = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
        environment = node_environment()
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=300, env=environment)
    shutil.copy(CLIENT / "drive.mjs", folder)
    return folder


@pytest.mark.parametrize("mode", MODES)
def test_the_typescript_sdk_connects_calls_watches_and_cancels(
    typescript_client: Path, tmp_path: Path, mode: str
) -> None:
    server = [sys.executable, "-I", "-S", str(SERVER), "--root", str(tmp_path)]
    run = subprocess.run(
        ["node", "drive.mjs", mode, str(tmp_path), *server],
        cwd=typescript_client,
        env=node_environment(),
        capture_output=True,
        timeout=60,
        check=False,
    )

    assert run.returncode == 0, run.stderr.decode()
    seen = json.loads(run.stdout)
    assert seen.pop("version") == MODES[mode]
    assert seen.pop("after").endswith("on\n")
    # Shown while it ran, or it would still run. The SDK drops a last word that comes with the answer.
    assert seen.pop("shown")[0] == "first\n"
    assert seen == {
        "server": "workspace",
        "tools": TOOLS,
        "written": "Wrote 4 bytes to 'a/b.txt'.",
        "read": "☃\n",
        "refused": True,
        "cancelled": "cancelled",
    }
