"""Explain that processes could not read the arguments of a job."""

from framework.admin.explain_reader import Blocker, ExplainReader
from framework.command_line import remedy_command
from framework.finish.endings import NO_KEY, NO_STORE
from framework.types import Payload
from framework.wire.job import DEFERRED_BY
from framework.wire.protected import ENCRYPTION_KEY


class ProtectionReader(ExplainReader):
    """Tell the key or the store that the processes lack which fetched a job."""

    def deferral(self, payload: Payload, times: str, remedy: str) -> Blocker | None:
        reason = payload.get(DEFERRED_BY)
        if reason == NO_KEY:
            key = payload.get(ENCRYPTION_KEY)
            why = f"deferred {times}: its arguments are encrypted with the key {key}, which the processes that fetched it lack"
            add = f"the key in encryption.keys of all processes ({remedy_command('encryption')} shows which are here)"
            return Blocker("no_key", why, f"{add}; then {remedy}")
        if reason == NO_STORE:
            why = f"deferred {times}: the payload store with its arguments did not answer the processes that fetched it"
            answer = f"an answer of payload_offload.url ({remedy_command('payloads')})"
            return Blocker("no_payload_store", why, f"{answer}; then {remedy}")
        return None
