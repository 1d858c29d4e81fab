"""Explain that an unhealthy database deferred a job."""

from framework.admin.explain_reader import ExplainReader
from framework.declare.declaration import Declaration
from framework.features.health.admission import REASON
from framework.text import Sentence, format_count
from framework.types import Payload
from framework.wire.job import DEFERRED_BY


# Indicators are not asked, so only the job and its class tell.
def describe_deferral(payload: Payload, declaration: Declaration | None) -> str:
    """Return why the health policy deferred a job, and how often it may; empty for a job of another policy.

    ``declaration`` is ``None`` if the class could not be loaded.
    """
    if payload.get(DEFERRED_BY) != REASON:
        return ""
    policy = None if declaration is None else declaration.facts["defer_on_health"]
    # A resolver chooses the database by the arguments of the job, and runs code of the application.
    database = (
        Sentence("its database")
        if policy is None or policy.resolver is not None
        else Sentence("the database {database}", database=policy.database)
    )
    most = (
        ""
        if policy is None or policy.max_deferrals is None
        else Sentence("; it runs after {deferrals}", deferrals=format_count(policy.max_deferrals, "deferral"))
    )
    return Sentence("an indicator said that {database} is overloaded{most}", database=database, most=most)


class HealthReader(ExplainReader):
    """Say which database was not healthy."""

    def cause_of_deferral(self, payload: Payload, declaration: Declaration | None) -> str:
        return describe_deferral(payload, declaration)
