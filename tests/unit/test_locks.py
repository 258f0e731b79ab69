import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = ["requirements.lock", "requirements-dev.lock", "requirements-node.lock"]


@pytest.mark.parametrize("lock", LOCKS)
def test_every_requirement_is_pinned_and_has_a_hash(lock: str) -> None:
    requirements = re.split(r"\n(?=\S)", (ROOT / lock).read_text().strip())

    assert requirements
    for requirement in requirements:
        first, *rest = requirement.replace("\\\n", "\n").splitlines()
        assert re.fullmatch(r"[a-z0-9-]+==\S+( ; .+)? *", first)
        assert rest
        assert all(re.fullmatch(r" +--hash=sha256:[0-9a-f]{64} *", line) for line in rest)


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_says_nothing_of_where_it_was_made(lock: str) -> None:
    text = (ROOT / lock).read_text()

    assert not re.search(r"://|/[a-z]|^#|^-|\bindex-url\b|\bfind-links\b", text, re.MULTILINE)


def test_the_versions_that_run_are_the_versions_that_are_tested() -> None:
    runtime, development = (
        {*re.findall(r"^\S+==\S+", (ROOT / lock).read_text(), re.M)} for lock in LOCKS[:2]
    )

    assert runtime < development
