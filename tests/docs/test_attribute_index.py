"""Test that the index of attributes names the page of each attribute."""

import re
from pathlib import Path

from framework.declare.attributes import ATTRIBUTES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "attributes" / "index.md"


def test_index_names_the_page_of_every_attribute() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| \[(\w+)\]\(\2\.md\) \|$", PAGE.read_text(), re.MULTILINE))
    assert rows == {name: attribute.group for name, attribute in ATTRIBUTES.items()}
