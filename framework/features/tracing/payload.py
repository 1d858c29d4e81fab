"""Define the payload fields of tracing that belong to the framework; those of the standards are in ``wire/context_fields.py``."""

LINKED = "aw_trace_linked"
"""True for a job that runs later than its push, or is one of many: its runs begin traces of their own, linked to that of the push."""

LAST_RUN = "aw_trace_run"
"""The ``traceparent`` of the run that failed or was put back: the next run links to it."""
