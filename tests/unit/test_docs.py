"""What the documents name exists, and what exists is named."""

import re
from pathlib import Path

import pytest

from mcp_orchestrator.settings import Settings

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
PLACES = ("src/", "images/", "tests/", "docs/", "scripts/", "bench/")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_path_a_document_names_exists(document: Path) -> None:
    words = re.findall(r"[\w./-]+", document.read_text())
    named = {word.rstrip(".") for word in words if word.startswith(PLACES)}

    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_between_documents_leads_somewhere(document: Path) -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)", document.read_text()) if "://" not in link]

    assert [link for link in links if not (document.parent / link).exists()] == []


def test_the_readme_names_every_setting() -> None:
    table = (ROOT / "README.md").read_text()

    assert [name for name in Settings.model_fields if f"`{name.upper()}`" not in table] == []
