"""What the documents point at is there: files, headings in them, and the sources and tests that they name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(path.relative_to(ROOT) for pattern in ("*.md", "docs/**/*.md") for path in ROOT.glob(pattern))
LINK = re.compile(r"\]\((?P<path>[^()#\s]*)(?:#(?P<anchor>[^()\s]*))?\)")
FENCED = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
#: Paths in code spans: a room, below the checkout or below `tests`, and a file.
NAMED = re.compile(
    r"`((?:kernels|radix_tiering|sglang_ext|console|ops|e2e|tests|docs)/[\w./-]+\.(?:py|md|yaml|tcss|json))"
)


def anchors(document: Path) -> set[str]:
    """Names of a document's headings, as GitHub makes them, and of anchors in HTML."""
    text = FENCED.sub("", document.read_text())
    found: set[str] = set(re.findall(r'<a id="([^"]+)">', text))
    for heading in re.findall(r"^#+ +(.+?)\s*$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        name = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        number = sum(one == name or re.fullmatch(rf"{re.escape(name)}-\d+", one) is not None for one in found)
        found.add(f"{name}-{number}" if number else name)
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_links_lead_somewhere(document: Path) -> None:
    lost = []
    for link in LINK.finditer(FENCED.sub("", (ROOT / document).read_text())):
        path, anchor = link["path"], link["anchor"]
        if "://" in path or path.startswith("mailto:"):
            continue
        target = (ROOT / document).parent / path if path else ROOT / document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            lost.append(link[0])
    assert not lost


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_files_that_it_names_are_there(document: Path) -> None:
    named = NAMED.findall((ROOT / document).read_text())
    assert not [name for name in named if not (ROOT / name).exists() and not (ROOT / "tests" / name).exists()]
