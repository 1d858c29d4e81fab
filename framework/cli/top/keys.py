"""Read the names of keys from the bytes that a terminal sends."""

import re
from collections.abc import Iterator, Mapping

_NAMES: Mapping[bytes, str] = {
    b"\r": "enter",
    b"\n": "enter",
    b"\t": "tab",
    b"\x7f": "backspace",
    b"\x08": "backspace",
    b"\x1b": "escape",
    b"\x1b[A": "up",
    b"\x1b[B": "down",
    b"\x1b[C": "right",
    b"\x1b[D": "left",
    b"\x1b[H": "home",
    b"\x1b[1~": "home",
    b"\x1b[F": "end",
    b"\x1b[4~": "end",
    b"\x1b[5~": "page up",
    b"\x1b[6~": "page down",
    b"\x1b[Z": "back tab",
}
"""The sequences of xterm, which other terminals send too."""

# A sequence of CSI or SS3, a single ESC, or one character of UTF-8.
_KEY = re.compile(rb"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1bO.|\x1b|[\xc2-\xf4][\x80-\xbf]+|.", re.DOTALL)


def parse_keys(data: bytes) -> Iterator[str]:
    """Yield a name, such as ``page up``, or the character of each key. Unknown sequences are left out."""
    for match in _KEY.finditer(data):
        # A terminal in application mode sends ESC O A instead of ESC [ A.
        sent = match[0].replace(b"\x1bO", b"\x1b[")
        name = _NAMES.get(sent)
        if name is not None:
            yield name
        elif not sent.startswith(b"\x1b"):
            text = sent.decode(errors="replace")
            if text.isprintable():
                yield text
