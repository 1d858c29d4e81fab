"""Make README.md the long description of the distribution.

A package index shows the text alone: a relative link leads nowhere there, and a relative picture is a broken one. So links
to files become the names of the files, which are in the source distribution, and a picture becomes its text and its name.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
ADDRESS = r"(?!https?://|mailto:)([^)\s#]+)(#[^)\s]*)?"
LINK = re.compile(rf"!?\[([^\]]+)\]\({ADDRESS}\)")
SECTION = re.compile(r"\[([^\]]+)\]\(#[^)\s]*\)")
NOTE = "Files that this page names are in the source distribution.\n\n"


def long_description(readme: str) -> str:
    """Return the text with files named instead of linked; code stays as it is."""
    pieces = FENCE.split(readme)  # every second piece is a fenced block
    pieces[::2] = [SECTION.sub(r"\1", LINK.sub(r"\1 (`\2`)", piece)) for piece in pieces[::2]]
    title, _, rest = "".join(pieces).partition("\n\n")
    return f"{title}\n\n{NOTE}{rest}"


class LongDescriptionHook(MetadataHookInterface):
    """The `readme` of the project's metadata, by hatchling's hook."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the field."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": long_description(text)}
