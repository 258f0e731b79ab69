"""Settings come from three places, and a wrong one stops the start with a sentence."""

from pathlib import Path

import pytest

from mcp_orchestrator.app import instance_id
from mcp_orchestrator.sandbox.backend import MIB
from mcp_orchestrator.settings import InvalidSettings, load_settings


@pytest.fixture(autouse=True)
def empty_surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in ("SANDBOX_MEMORY", "SANDBOX_CPUS", "SANDBOX_BACKEND", "DATA_DIR", "INSTANCE_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_without_any_setting_the_documented_defaults_hold() -> None:
    settings = load_settings()

    assert settings.sandbox_backend == "auto"
    assert settings.sandbox_image == "mcp-server:latest"
    assert settings.sandbox_limits.memory_bytes == 512 * MIB
    assert settings.sandbox_limits.cpus == 0.5


def test_the_environment_wins_over_the_env_file_and_that_over_the_toml_file(
    monkeypatch: pytest.MonkeyPatch, empty_surroundings: Path
) -> None:
    (empty_surroundings / "mcp-orchestrator.toml").write_text(
        'sandbox_cpus = 1\nsandbox_memory = "1g"\nsandbox_image = "a"'
    )
    (empty_surroundings / ".env").write_text("SANDBOX_MEMORY=256m\nSANDBOX_CPUS=2\n")
    monkeypatch.setenv("SANDBOX_CPUS", "3")

    settings = load_settings()

    assert (settings.sandbox_cpus, settings.sandbox_memory, settings.sandbox_image) == (3, 256 * MIB, "a")


def test_an_empty_value_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDBOX_MEMORY", "")

    assert load_settings().sandbox_memory == 512 * MIB


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SANDBOX_MEMORY", "lots"),
        ("SANDBOX_MEMORY", "1k"),
        ("SANDBOX_CPUS", "0"),
        ("SANDBOX_BACKEND", "none"),
        ("SANDBOX_RUNTIME", "../runsc"),
        ("INSTANCE_ID", "Not Plain"),
    ],
)
def test_a_wrong_value_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)

    with pytest.raises(InvalidSettings, match=name) as refused:
        load_settings()

    assert value in str(refused.value)


def test_a_broken_settings_file_is_told(empty_surroundings: Path) -> None:
    (empty_surroundings / "mcp-orchestrator.toml").write_text("not toml at all [")

    with pytest.raises(InvalidSettings, match="settings file"):
        load_settings()


def test_the_temporary_file_systems_fit_into_a_small_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDBOX_MEMORY", "128m")

    limits = load_settings().sandbox_limits

    assert limits.workspace_bytes + limits.tmp_bytes + limits.shm_bytes <= limits.memory_bytes // 2


def test_an_instance_keeps_its_id_over_restarts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DATA_DIR", str(tmp_path / "one"))
    first, again = instance_id(load_settings()), instance_id(load_settings())
    monkeypatch.setenv("DATA_DIR", str(tmp_path / "two"))
    other = instance_id(load_settings())

    assert first == again != other
