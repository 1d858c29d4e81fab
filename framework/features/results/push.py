"""Add the fields of results to the payloads of a class."""

from framework.declare.declaration import Declaration
from framework.features.results.payload import RESULT, result_request, state_ttl_s
from framework.push.normalize import wire_value
from framework.types import Payload
from framework.wire.status_key import STATUS_EXPIRATION


def add_fields(fields: Payload, declaration: Declaration) -> None:
    """Let the results of a class with ``keep_result`` be kept, and its states for longer."""
    kept = declaration.facts.get("keep_result")
    if kept is not None:
        ttl_s: int = wire_value(kept)
        fields[RESULT] = result_request(ttl_s)
        fields[STATUS_EXPIRATION] = max(fields.get(STATUS_EXPIRATION, 0), state_ttl_s(ttl_s))
