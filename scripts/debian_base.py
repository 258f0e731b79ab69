"""A base for the sandbox image from Debian packages, for machines that reach no image registry.

The result is an archive as `docker load` reads it. The same packages make the same bytes: every date is
the epoch, and what differs from run to run is not in it.
"""

import hashlib
import json
import os
import platform
import shutil
import subprocess
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path
from typing import Final

from mcp_orchestrator.errors import OrchestratorError

INSTALL_SECONDS: Final = 600
BUILD_SECONDS: Final = 600

# What a person expects in a shell, beside the essential packages. `usr-is-merged` and `media-types` are the
# small answers to dependencies that would otherwise bring in all of Perl.
PACKAGES: Final = ("git", "media-types", "python3", "usr-is-merged")

# Never read in a sandbox: for people, for other languages, for a network, or for the parts of git in Perl.
LEFT_OUT: Final = (
    "/usr/lib/*/gconv/*",
    "/usr/lib/*/libperl.so*",
    "/usr/lib/*/perl/*",
    "/usr/lib/git-core/git-daemon",
    "/usr/lib/git-core/git-http-*",
    "/usr/lib/git-core/git-imap-send",
    "/usr/lib/git-core/git-remote-*",
    "/usr/lib/git-core/scalar",
    "/usr/bin/scalar",
    "/usr/share/bash-completion/*",
    "/usr/share/doc/*",
    "/usr/share/gitweb/*",
    "/usr/share/info/*",
    "/usr/share/lintian/*",
    "/usr/share/locale/*",
    "/usr/share/man/*",
    "/usr/share/perl/*",
)

# The bytecode is made by the Dockerfile, alike for every base. The rest names this machine or its package
# mirrors, or is a cache.
REMOVED_AT_THE_END: Final = (
    'find "$1"/usr/lib/python3* "$1"/usr/share/python3 -name __pycache__ -prune -exec rm -r {} +',
    'rm -rf "$1"/etc/apt/sources.list* "$1"/etc/apt/apt.conf.d/99* "$1"/etc/dpkg/dpkg.cfg.d',
    'rm -rf "$1"/etc/hostname "$1"/etc/resolv.conf',
    'rm -rf "$1"/var/cache/debconf "$1"/var/cache/ldconfig "$1"/var/log/* "$1"/var/lib/dpkg/*-old',
    'find "$1" -xdev -type f -perm /6000 -exec chmod a-s {} +',
)


class BaseUnavailable(OrchestratorError):
    """No base can be made here; the message says what to do."""


def name() -> str:
    """The image name of the base: another recipe, another name."""
    recipe = repr((PACKAGES, LEFT_OUT, REMOVED_AT_THE_END, _codename(), _architecture()))
    return f"mcp-sandbox-base:{hashlib.sha256(recipe.encode()).hexdigest()[:16]}"


def archive(cache: Path) -> Path:
    """The base as an image archive in `cache`, built if it is not there.

    Raises:
        BaseUnavailable: this is no Debian, or a tool is missing and cannot be installed.
    """
    path = cached(cache)
    if not path.exists():
        _install_mmdebstrap()
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            root = Path(folder, "layer.tar")
            _bootstrap(root)
            image = Path(folder, "image.tar")
            _pack(root, image)
            image.replace(path)  # Whole or not at all: another run may look for it now.
    return path


def cached(cache: Path) -> Path:
    return cache / f"{name().replace(':', '-')}.tar"


def _bootstrap(target: Path) -> None:
    command = [
        "mmdebstrap",
        "--quiet",
        "--variant=essential",
        "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",
        '--aptopt=Apt::Install-Recommends "false"',
        *(f"--aptopt={line}" for line in _transport_options()),
        *(f"--dpkgopt=path-exclude={pattern}" for pattern in LEFT_OUT),
        *(f"--customize-hook={hook}" for hook in REMOVED_AT_THE_END),
        f"--include={','.join(PACKAGES)}",
        _codename(),
        str(target),
        *_package_sources(),
    ]
    # TMPDIR may be a folder that the unprivileged mode cannot enter; /tmp is not.
    environment = os.environ | {"SOURCE_DATE_EPOCH": "0", "TMPDIR": "/tmp"}  # noqa: S108
    outcome = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=BUILD_SECONDS,
        check=False,
    )
    if outcome.returncode != 0:
        last_words = "\n".join(outcome.stderr.splitlines()[-10:])
        raise BaseUnavailable(
            f"mmdebstrap could not build a base image:\n{last_words}\n"
            "As an ordinary user it needs the package uidmap and an entry in /etc/subuid."
        )


def _install_mmdebstrap() -> None:
    if shutil.which("mmdebstrap"):
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise BaseUnavailable(
            "No registry answers, and the tool to build a base image is missing: "
            "install mmdebstrap and uidmap, or name an image of yours in BASE_IMAGE."
        )
    _apt_get("update")
    _apt_get("install", "--yes", "--no-install-recommends", "mmdebstrap")


def _apt_get(*arguments: str) -> None:
    subprocess.run(
        ["apt-get", "--quiet=2", *arguments],
        env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
        stdout=subprocess.DEVNULL,
        check=True,
        timeout=INSTALL_SECONDS,
    )


def _package_sources() -> list[str]:
    """Where this machine gets its Debian packages from: its own mirrors, whatever they are."""
    keyring = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
    signed = f"[signed-by={keyring}] " if keyring.exists() else ""
    line = f"deb {signed}$(REPO_URI) $(RELEASE) $(COMPONENT)"
    command = ["apt-get", "indextargets", "--format", line, "Created-By: Packages", "Origin: Debian"]
    sources = _output(command).splitlines()
    if not sources:
        raise BaseUnavailable("apt knows no Debian packages here: run apt-get update as root first.")
    return sources


def _transport_options() -> list[str]:
    """How this machine's apt reaches them: a proxy, a certificate."""
    options = _output(["apt-config", "dump"]).splitlines()
    wanted = ("Acquire::http::", "Acquire::https::", "Acquire::Check-Valid-Until ")
    return [line for line in options if line.startswith(wanted) and not line.endswith('"";')]


def _codename() -> str:
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        release = {}
    if release.get("ID") != "debian" or "VERSION_CODENAME" not in release:
        raise BaseUnavailable(
            "No registry answers, and a base image can only be built on Debian: "
            "name an image of yours in BASE_IMAGE."
        )
    return release["VERSION_CODENAME"]


def _architecture() -> str:
    return _output(["dpkg", "--print-architecture"]).strip()


def _output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def _pack(layer: Path, target: Path) -> None:
    """Wrap one layer as an image: unlike an import, a load adds no date of its own."""
    with layer.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    config: object = {
        "architecture": _architecture(),
        "os": "linux",
        "created": "1970-01-01T00:00:00Z",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        "history": [{"created": "1970-01-01T00:00:00Z", "created_by": "debian_base"}],
    }
    manifest: object = [{"Config": "config.json", "RepoTags": [name()], "Layers": ["layer.tar"]}]
    with tarfile.open(target, "w") as image:
        with layer.open("rb") as file:
            entry = tarfile.TarInfo("layer.tar")
            entry.size = layer.stat().st_size
            image.addfile(entry, file)
        for member, content in (("config.json", config), ("manifest.json", manifest)):
            data = json.dumps(content).encode()
            entry = tarfile.TarInfo(member)
            entry.size = len(data)
            image.addfile(entry, BytesIO(data))
