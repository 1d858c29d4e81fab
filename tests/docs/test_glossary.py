"""Test that the glossary has each term once, in its order, and that each name of the reference has one row in all pages."""

import re

import pytest

from tests.reference_pages import DOCS, KINDS, names


def test_glossary_has_each_term_once():
    terms = re.findall(r"^- \*\*(.+?)\*\*: ", (DOCS / "glossary.md").read_text(), re.MULTILINE)
    assert len(terms) > 100
    assert sorted(terms) == sorted(set(terms))


@pytest.mark.parametrize("kind", KINDS)
def test_each_name_of_the_reference_has_one_row(kind: str):
    found = names(kind)
    assert len(found) > 50
    if kind != "Log fields":  # a field may mean something else in the lines of one event
        assert sorted(found) == sorted(set(found))
