"""Escape control and invisible characters, so that foreign text cannot forge output.

Any program with access to Redis writes names, messages and payloads. ESC moves the cursor and fills the clipboard (OSC 52), a newline
starts another line, bidirectional controls change the reading order, and zero-width characters make two names look alike.
"""

import re

MOST = 20_000
"""The shown characters of one text."""

_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_HIDDEN = re.compile(
    "[\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0001\U000e0020-\U000e007f]"
)
"""Control, format and line separator characters and lone surrogates, except those below U+0020, which JSON always escapes."""


def visible(text: str, most: int = MOST) -> str:
    """Return ``text`` as one line of at most about ``most`` characters, with Python's escapes for unprintable ones."""
    if len(text) > most:
        text = f"{text[:most]}..."
    if text.isprintable():
        return text
    return "".join([char if char.isprintable() else _escaped(char) for char in text])


def visible_json(text: str) -> str:
    """Return the JSON text with escapes for the characters that a terminal or a page would interpret."""
    return _HIDDEN.sub(_escaped_in_json, text)


def _escaped(char: str) -> str:
    number = ord(char)
    if char in _NAMED:
        return _NAMED[char]
    if number <= 0xFF:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number <= 0xFFFF else f"\\U{number:08x}"


def _escaped_in_json(found: re.Match[str]) -> str:
    number = ord(found.group())
    if number <= 0xFFFF:
        return f"\\u{number:04x}"
    high, low = divmod(number - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"
