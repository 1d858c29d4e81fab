"""Show a URL of the settings without its secrets: the one way in which lines, messages and commands show a URL."""

import re

_END_OF_PLACE = re.compile(r"[?#]")


def shown_url(url: str) -> str:
    """Return a checked URL without credentials: scheme, host, port and path. User, password, query and fragment are left out."""
    scheme, separator, rest = url.partition("://")
    place = _END_OF_PLACE.split(rest, maxsplit=1)[0]
    # A password with an unescaped slash reaches into the path. A path alone may have an @.
    return f"{scheme}{separator}{place if place.startswith('/') else place.rpartition('@')[2]}"
