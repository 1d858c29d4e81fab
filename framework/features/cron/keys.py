"""Name the keys of cron and of the leader."""


def leader(group: str) -> str:
    """STRING with a TTL: the identity of the process that leads the processes of an application on this shard."""
    return f"aw:leader:{group}"


def cron_states(application: str) -> str:
    """HASH from a cron entry to its last settled tick, its fingerprint and the jid of its last job."""
    return f"aw:cron:{application}"


def cron_orders(application: str) -> str:
    """HASH from a cron entry to the operators' order as JSON: enabled, expression, arguments, reason, operator."""
    return f"aw:cron_orders:{application}"


def cron_entries(application: str) -> str:
    """HASH from a cron entry that was added at run time to its facts as JSON, as in ``config/schedule.yml``."""
    return f"aw:cron_entries:{application}"


def cron_ticks(application: str, entry: str) -> str:
    """LIST with a TTL: the last settled ticks of a cron entry, the newest first."""
    return f"aw:cron_ticks:{application}:{entry}"
