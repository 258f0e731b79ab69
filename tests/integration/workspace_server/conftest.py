from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.workspace_server.client import ServerProcess


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = tmp_path / "workspace"
    path.mkdir()
    return path


@pytest.fixture
def server(workspace: Path) -> Iterator[ServerProcess]:
    with ServerProcess(workspace) as running:
        yield running
