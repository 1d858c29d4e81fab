"""Check the form of every decision, and every reference to a decision in code, tests and pages."""

import re

from tests.harness import ROOT

PAGE = ROOT / "docs" / "internals" / "decisions.md"
FORM = re.compile(
    r"## (?P<number>\d+)\. (?P<title>\S.*)\n\n\d{4}-\d\d-\d\d, (?:accepted|superseded by \d+)\.\n\n"
    r"\*\*Context\.\*\* [^#]+\n\n\*\*Decision\.\*\* [^#]+\n\n\*\*Consequences\.\*\* [^#]+\Z"
)
SECTIONS = re.split(r"^(?=## )", PAGE.read_text(), flags=re.MULTILINE)[1:]
NUMBERS = [int(section[3:].partition(".")[0]) for section in SECTIONS]
SEARCHED = ("framework", "workers", "scripts", "tests", "docs")
SUFFIXES = {"", ".py", ".lua", ".md", ".yml", ".yaml", ".toml", ".rb", ".sh", ".rst", ".txt"}


def referring_files():
    """Return every text file that may refer to a decision, without this test."""
    found = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "pyproject.toml")]
    for folder in SEARCHED:
        found += [path for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES and path.is_file()]
    ignored = ROOT / "tests" / "docs" / "test_decisions.py"
    return [path for path in found if path.is_file() and path != ignored and "__pycache__" not in path.parts]


def references(text):
    """Return the numbers of the decisions that a text refers to."""
    if "decision" not in text.lower():  # most files: the search below is slow
        return set()
    joined = re.sub(r"\s+(?:--|#|//|\*)?\s*", " ", text)
    numbers = {int(number) for number in re.findall(r"\bdecision (\d+)", joined, re.IGNORECASE)}
    for listed in re.findall(r"\bdecisions (\d+(?:(?:, | and )\d+)*)", joined, re.IGNORECASE):
        numbers.update(int(number) for number in re.findall(r"\d+", listed))
    return numbers


def test_decisions_have_their_parts_and_one_number_each():
    assert [section.partition("\n")[0] for section in SECTIONS if not FORM.fullmatch(section.rstrip("\n"))] == []
    assert sorted(set(NUMBERS)) == NUMBERS


def test_reference_to_a_decision_leads_to_one():
    lost = []
    for path in referring_files():
        numbers = references(path.read_text(errors="replace"))
        lost += [f"{path.relative_to(ROOT)}: {one}" for one in sorted(numbers - set(NUMBERS))]
    assert lost == []


def test_references_across_lines_are_found():
    assert references("see decision\n-- 28, [decision 7](decisions.md)") == {28, 7}
    assert references("decisions 1, 2 and 3") == {1, 2, 3}
