"""Encode the orders of operators for single entries: enable, disable, another expression, other arguments."""

from dataclasses import asdict, dataclass
from typing import Any

from framework.cron_expression import check_cron
from framework.errors import PayloadError
from framework.typeguards import is_list, is_mapping
from framework.wire.json import dumps, loads


@dataclass(frozen=True, slots=True)
class Order:
    """The operators' order for one entry. ``None`` leaves what the configuration says."""

    enabled: bool | None = None
    cron: str | None = None
    args: list[Any] | None = None
    reason: str = ""
    set_by: str = ""
    set_at: float = 0.0

    def encode(self) -> bytes:
        """Return the stored form."""
        return dumps(asdict(self))

    @property
    def changes_nothing(self) -> bool:
        """Return whether the entry is as the configuration says."""
        return self.enabled is None and self.cron is None and self.args is None

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing to keep: it changes nothing, and no operator gave a reason for that."""
        return self.changes_nothing and not self.reason


NO_ORDER = Order()


def decode_order(data: bytes | None) -> Order | None:
    """Return the order in ``data``, ``None`` if it cannot be read: the entry is then as the configuration says."""
    if data is None:
        return NO_ORDER
    try:
        fields = loads(data, None)
        if not is_mapping(fields):
            return None
        enabled, cron, args = fields.get("enabled"), fields.get("cron"), fields.get("args")
        return Order(
            enabled if isinstance(enabled, bool) else None,
            None if cron is None else check_cron(cron),
            args if is_list(args) else None,
            str(fields.get("reason", "")),
            str(fields.get("set_by", "")),
            float(fields.get("set_at", 0.0)),
        )
    except (PayloadError, ValueError, TypeError):
        return None
