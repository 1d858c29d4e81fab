"""Mask secrets in texts that leave the process: credentials in URLs, and the secrets of its settings, wherever they turn up.

A message of an exception is the application's, and may quote a URL or a setting: a driver names the database that it does not reach.
"""

import re
from collections.abc import Iterable
from urllib.parse import quote

MASK = "***"
_LEAST = 6
"""A shorter secret is not searched for: it would mask ordinary words."""

_CREDENTIALS = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.\-]{0,30}://)[^\s/?#'\"<>]*@")
"""The part of a URL between its scheme and its host. Without a scheme a text with an @ may be anything."""


class KnownSecrets:
    """The secrets of this process. Safe from any thread: the tuple is replaced as a whole."""

    def __init__(self) -> None:
        self._found: tuple[str, ...] = ()

    def add(self, texts: Iterable[str]) -> None:
        """Mask these texts from now on, as they are and as URLs write them."""
        forms = {form for text in texts for form in (text, quote(text, safe="")) if len(text) >= _LEAST}
        # The longest first: a secret may contain another one.
        self._found = tuple(sorted({*self._found, *forms}, key=lambda one: (-len(one), one)))

    def masked(self, text: str) -> str:
        """Return the text with *** in place of each secret."""
        if "://" in text:
            text = _CREDENTIALS.sub(rf"\g<scheme>{MASK}@", text)
        for one in self._found:
            if one in text:
                text = text.replace(one, MASK)
        return text


known_secrets = KnownSecrets()
"""Those of this process; the loader of the settings adds them."""
