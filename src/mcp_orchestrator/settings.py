"""Environment, `.env` and `mcp-orchestrator.toml` to frozen options. A wrong value stops the start."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, field_validator
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from mcp_orchestrator.errors import OrchestratorError
from mcp_orchestrator.sandbox.backend import MIB, SandboxLimits

_UNITS = {"": 1, "b": 1, "k": 1024, "m": MIB, "g": 1024 * MIB}
_LEAST_MEMORY = 64 * MIB
_FILE = "mcp-orchestrator.toml"


class InvalidSettings(OrchestratorError):
    """A setting has a value that cannot be used."""


def _size(value: Any) -> int:
    """Bytes from `512m`, `1g` or a plain number, as engines write them."""
    match = re.fullmatch(r"(\d+)([bkmg]?)b?", str(value).strip().lower())
    if match is None:
        raise ValueError("not a size")
    size = int(match[1]) * _UNITS[match[2]]
    if size < _LEAST_MEMORY:
        raise ValueError(f"less than {_LEAST_MEMORY // MIB}m, with which nothing starts")
    return size


def _plain(value: str) -> str:
    if not re.fullmatch(r"([a-z0-9][a-z0-9-]{0,31})?", value):
        raise ValueError("only small letters, digits and -, at most 32")
    return value


Size = Annotated[int, BeforeValidator(_size)]
Plain = Annotated[str, AfterValidator(_plain)]


class Settings(BaseSettings):
    """Every option by its name in the environment; an empty value counts as unset."""

    model_config = SettingsConfigDict(
        env_file=".env",
        toml_file=_FILE,
        env_ignore_empty=True,
        extra="ignore",
        frozen=True,
        validate_default=True,
    )

    # Where state and archives live.
    data_dir: Path = Field(
        default=Path("~/.local/share/mcp-orchestrator"), examples=["/var/lib/mcp-orchestrator"]
    )
    # Tells our sandboxes from those of others on the same engine; kept in DATA_DIR when not given.
    instance_id: Plain = Field(default="", examples=["staging-1"])
    sandbox_backend: Literal["auto", "docker", "bubblewrap"] = Field(default="auto", examples=["auto"])
    sandbox_image: str = Field(default="mcp-server:latest", examples=["mcp-server:latest"])
    # An OCI runtime of the engine's other than its default.
    sandbox_runtime: str = Field(default="", pattern=r"^[A-Za-z0-9._-]{0,64}$", examples=["runsc"])
    sandbox_memory: Size = Field(default=512 * MIB, examples=["512m"])
    sandbox_cpus: float = Field(default=0.5, ge=0.05, le=64, examples=["0.5"])

    @field_validator("data_dir")
    @classmethod
    def _expand(cls, value: Path) -> Path:
        try:
            return value.expanduser().absolute()
        except RuntimeError:
            raise ValueError("there is no home directory to put it in") from None

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the library passes it
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The first that names a setting wins."""
        return init_settings, env_settings, dotenv_settings, TomlConfigSettingsSource(settings_cls)

    @property
    def sandbox_limits(self) -> SandboxLimits:
        """The temporary file systems are part of the memory: a quarter and an eighth of it, within bounds."""
        usual = SandboxLimits()
        return SandboxLimits(
            memory_bytes=self.sandbox_memory,
            cpus=self.sandbox_cpus,
            workspace_bytes=min(usual.workspace_bytes, self.sandbox_memory // 4),
            tmp_bytes=min(usual.tmp_bytes, self.sandbox_memory // 8),
        )


def load_settings() -> Settings:
    """Read the settings.

    Raises:
        InvalidSettings: names the setting, what is wrong with it, and an example.
    """
    try:
        return Settings()
    except ValidationError as error:
        raise InvalidSettings("\n".join(_sentence(problem) for problem in error.errors())) from None
    except (OSError, ValueError) as error:
        raise InvalidSettings(f"A settings file here (.env or {_FILE}) cannot be read: {error}") from error


def _sentence(problem: ErrorDetails) -> str:
    field = str(problem["loc"][0])
    examples = Settings.model_fields[field].examples or [""]
    message = problem["msg"].removeprefix("Value error, ")
    return f"{field.upper()}={problem['input']}: {message}. An example: {field.upper()}={examples[0]}"
