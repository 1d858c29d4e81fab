"""The port through which ``framework.admin`` reaches the shards. The package binds it; importing it opens no connection."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from framework.declare.port import Binding

# `import framework` loads this module, and neither Redis nor pydantic.
if TYPE_CHECKING:
    from framework.settings.model import CoreSettings
    from framework.shard.shards import Shards


class Access(NamedTuple):
    """The shards of the process, and its settings."""

    shards: "Shards"
    settings: "CoreSettings"


opener: Binding[Callable[[], Access]] = Binding("`import framework` binds the shards of the process.")
"""The function that returns the access of the process. It is called for each call of ``framework.admin``, so that a later
``boot()`` holds for it too.
"""


def current() -> Access:
    """Return the access of the process. The first use reads the configuration, as the first push does.

    Raises:
        ConfigurationError: the configuration is invalid.
    """
    return opener.current()()
