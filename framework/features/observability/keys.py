"""Name the keys of observability."""

REPORTER = "aw:fleet_reporter"
"""STRING with a TTL: the identity of the process that reports the figures of the shard (setting ``fleet.reporter``)."""
