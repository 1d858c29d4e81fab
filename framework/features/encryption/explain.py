"""Explain that processes could not read the arguments of a job."""

from framework.admin.explain_reader import Blocker, ExplainReader
from framework.command_line import remedy_command
from framework.finish.endings import NO_KEY, NO_STORE
from framework.text import Sentence
from framework.types import Payload
from framework.wire.job import DEFERRED_BY
from framework.wire.protected import ENCRYPTION_KEY


class ProtectionReader(ExplainReader):
    """Tell the key or the store that the processes lack which fetched a job."""

    def deferral(self, payload: Payload, times: str, remedy: str) -> Blocker | None:
        reason = payload.get(DEFERRED_BY)
        if reason == NO_KEY:
            key = payload.get(ENCRYPTION_KEY)
            why = Sentence(
                "deferred {times}: its arguments are encrypted with the key {key}, which the processes that fetched it lack",
                times=times,
                key=key,
            )
            add = Sentence(
                "the key in encryption.keys of all processes ({command} shows which are here)",
                command=remedy_command("encryption"),
            )
            return Blocker("no_key", why, Sentence("{add}; then {remedy}", add=add, remedy=remedy))
        if reason == NO_STORE:
            why = Sentence(
                "deferred {times}: the payload store with its arguments did not answer the processes that fetched it",
                times=times,
            )
            answer = Sentence("an answer of payload_offload.url ({command})", command=remedy_command("payloads"))
            return Blocker("no_payload_store", why, Sentence("{answer}; then {remedy}", answer=answer, remedy=remedy))
        return None
