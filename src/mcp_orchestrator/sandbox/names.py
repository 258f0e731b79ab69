"""What sandboxes are called, so that any process can find them again.

A session's name is a function of its id alone: the engine then refuses a twin,
and no value of a person reaches the engine, only its hash.
"""

import hashlib
import secrets
from datetime import UTC, datetime

from mcp_orchestrator.sandbox.backend import SandboxSpec

INSTANCE_LABEL = "io.mcp-orchestrator.instance"
CREATED_LABEL = "io.mcp-orchestrator.created"
SPEC_LABEL = "io.mcp-orchestrator.spec"
ATTEMPT_LABEL = "io.mcp-orchestrator.attempt"


def session_name(instance: str, session_id: str) -> str:
    digest = hashlib.sha256(session_id.encode()).hexdigest()[:32]
    return f"mcpo-{instance}-session-{digest}"


def pool_name(instance: str) -> str:
    return f"mcpo-{instance}-pool-{secrets.token_hex(8)}"


def labels(instance: str, spec: SandboxSpec) -> dict[str, str]:
    """What a sandbox carries so that its instance, age and shape can be read off it."""
    return {
        INSTANCE_LABEL: instance,
        CREATED_LABEL: datetime.now(UTC).isoformat(timespec="seconds"),
        SPEC_LABEL: spec.fingerprint,
        # Tells what one attempt made from what another made under the same name.
        ATTEMPT_LABEL: secrets.token_hex(8),
    }
