"""Small doors that must be shut: who may tell us what to kill, and what an unusable setting says."""

from pathlib import Path

import pytest

from mcp_orchestrator.sandbox.backend import BackendUnavailable
from mcp_orchestrator.sandbox.bubblewrap.claims import make_runtime_dir
from mcp_orchestrator.sandbox.docker.backend import DockerBackend


def test_a_runtime_folder_that_others_can_write_to_is_not_obeyed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    folder.chmod(0o777)

    with pytest.raises(BackendUnavailable, match="Others can write"):
        make_runtime_dir(folder)

    folder.chmod(0o700)
    make_runtime_dir(folder)


def test_a_runtime_folder_that_cannot_be_made_is_told() -> None:
    with pytest.raises(BackendUnavailable, match="DATA_DIR"):
        make_runtime_dir(Path("/proc/none/run"))


async def test_missing_certificates_are_told_and_not_thrown(tmp_path: Path) -> None:
    environment = {
        "DOCKER_HOST": "tcp://127.0.0.1:1",
        "DOCKER_TLS_VERIFY": "1",
        "DOCKER_CERT_PATH": str(tmp_path),
    }

    with pytest.raises(BackendUnavailable, match="DOCKER_CERT_PATH"):
        await DockerBackend.connect("test", environment, tmp_path)


@pytest.mark.parametrize("host", ["ssh://somebody@somewhere", "garbage"])
async def test_an_engine_address_of_another_kind_is_told(tmp_path: Path, host: str) -> None:
    with pytest.raises(BackendUnavailable, match="not supported"):
        await DockerBackend.connect("test", {"DOCKER_HOST": host}, tmp_path)
