"""Read the result of a job by its id: ``framework.result(jid)``, and ``await framework.aresult(jid)``."""

from framework.features.results.calls import aresult, result

__all__ = ["aresult", "result"]
