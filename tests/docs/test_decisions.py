"""Check the form of every decision, the index, and every reference to a decision in code, tests and pages."""

import re

from tests.harness import ROOT

FOLDER = ROOT / "docs" / "decisions"
PAGES = sorted(FOLDER.glob("0*.md"))
NAMES = {page.name for page in PAGES}
NUMBERS = {int(page.name[:4]) for page in PAGES}
FORM = re.compile(
    r"# (?P<number>\d+)\. (?P<title>\S.*)\n\n- Date: \d{4}-\d\d-\d\d\n- Status: (?P<status>accepted|superseded)\b.*\n"
    r"\n## Context\n\n\S[^#]+\n## Decision\n\n\S[^#]+\n## Consequences\n\n\S[^#]+\Z"
)
SEARCHED = ("framework", "workers", "scripts", "tests", "docs")
SUFFIXES = {"", ".py", ".lua", ".md", ".yml", ".yaml", ".toml", ".rb", ".sh", ".rst", ".txt"}


def referring_files():
    """Return every text file that may refer to a decision, without this test and the decisions' own history."""
    found = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "pyproject.toml")]
    for folder in SEARCHED:
        found += [path for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES and path.is_file()]
    ignored = {FOLDER / "index.md", ROOT / "tests" / "docs" / "test_decisions.py"}
    return [path for path in found if path.is_file() and path not in ignored and "__pycache__" not in path.parts]


def references(text):
    """Return the numbers and the file names of decisions that a text refers to."""
    text = re.sub(r"^- Status: .*$", "", text, flags=re.MULTILINE)
    joined = re.sub(r"\s+(?:--|#|//|\*)?\s*", " ", text)
    numbers = {int(number) for number in re.findall(r"\bdecision (\d+)", joined, re.IGNORECASE)}
    for listed in re.findall(r"\bdecisions (\d+(?:(?:, | and )\d+)*)", joined, re.IGNORECASE):
        numbers.update(int(number) for number in re.findall(r"\d+", listed))
    return numbers, set(re.findall(r"decisions/(\d{4}[\w.-]*)", text))


def test_decision_pages_have_the_four_parts():
    assert len(PAGES) > 30
    for page in PAGES:
        text = page.read_text()
        form = FORM.match(text)
        assert form, f"{page.name}: write title, Date, Status, Context, Decision and Consequences"
        assert int(form["number"]) == int(page.name[:4])
        assert not [line for line in text.splitlines() if len(line) > 120 and "|" not in line], page.name


def test_decision_index_lists_every_page():
    rows = re.findall(r"^\| (\d+) \| \[(.+)\]\((.+)\) \| (\w+) \|$", (FOLDER / "index.md").read_text(), re.MULTILINE)
    forms = [(page, FORM.match(page.read_text())) for page in PAGES]
    assert rows == [(form["number"], form["title"], page.name, form["status"]) for page, form in forms if form]


def test_merged_numbers_lead_to_a_decision():
    text = (FOLDER / "index.md").read_text()
    rows = re.findall(r"^\| (\d+) \| (\d+) \|$", text, re.MULTILINE)
    assert len(rows) > 20
    assert not {int(former) for former, _ in rows} & NUMBERS
    assert {int(kept) for _, kept in rows} <= NUMBERS
    pages, merged = re.findall(r"(?:^\| \d+ .*\n?)+", text, re.MULTILINE)
    assert "](" not in merged
    assert all("](" in row for row in pages.splitlines())


def test_reference_to_a_decision_leads_to_one():
    lost = []
    for path in referring_files():
        numbers, names = references(path.read_text(errors="replace"))
        if path.parent == FOLDER:
            names |= set(re.findall(r"\]\((\d{4}[\w.-]*)", path.read_text()))
        lost += [f"{path.relative_to(ROOT)}: {one}" for one in sorted(numbers - NUMBERS) + sorted(names - NAMES)]
    assert lost == []


def test_references_across_lines_are_found():
    assert references("see decision\n-- 28, [decision 7](decisions/0007-x.md)") == ({28, 7}, {"0007-x.md"})
    assert references("decisions 1, 2 and 3") == ({1, 2, 3}, set())
    assert references("- Status: accepted; includes decision 29") == (set(), set())
