"""The names for features of an application's own: records that the setting ``features`` names. See docs/guides/extending.md.

TENANT = Feature(name="tenant", worker=Late("shop.features:tenant_part"))
"""

from typing import TYPE_CHECKING, Any

from framework.feature import Feature, Late, LateCommand
from framework.lazy_names import load_name, public_names

if TYPE_CHECKING:
    from framework.admin.diagnosis.cause import Cause, CauseReader
    from framework.admin.explain_reader import Blocker, ExplainReader
    from framework.admin.job_record import JobRecord
    from framework.declare.declaration import Declaration
    from framework.execute.admission import AdmissionPolicy, AdmissionRequest, StagedPolicy
    from framework.finish.outcome import Deferred, Discarded
    from framework.pages.job_column import JobColumn
    from framework.pages.page import Page
    from framework.pages.table import Column, Rows, TablePage
    from framework.pages.view import View
    from framework.process.worker_parts import ProcessContext, WorkerPart
    from framework.push.push_plan import PushPlan

__all__ = [
    "AdmissionPolicy",
    "AdmissionRequest",
    "Blocker",
    "Cause",
    "CauseReader",
    "Column",
    "Declaration",
    "Deferred",
    "Discarded",
    "ExplainReader",
    "Feature",
    "JobColumn",
    "JobRecord",
    "Late",
    "LateCommand",
    "Page",
    "ProcessContext",
    "PushPlan",
    "Rows",
    "StagedPolicy",
    "TablePage",
    "View",
    "WorkerPart",
]

_MODULES = {
    "AdmissionPolicy": "framework.execute.admission",
    "AdmissionRequest": "framework.execute.admission",
    "Blocker": "framework.admin.explain_reader",
    "Cause": "framework.admin.diagnosis.cause",
    "CauseReader": "framework.admin.diagnosis.cause",
    "Column": "framework.pages.table",
    "Declaration": "framework.declare.declaration",
    "Deferred": "framework.finish.outcome",
    "Discarded": "framework.finish.outcome",
    "ExplainReader": "framework.admin.explain_reader",
    "JobColumn": "framework.pages.job_column",
    "JobRecord": "framework.admin.job_record",
    "Page": "framework.pages.page",
    "ProcessContext": "framework.process.worker_parts",
    "PushPlan": "framework.push.push_plan",
    "Rows": "framework.pages.table",
    "StagedPolicy": "framework.execute.admission",
    "TablePage": "framework.pages.table",
    "View": "framework.pages.view",
    "WorkerPart": "framework.process.worker_parts",
}


def __getattr__(name: str) -> Any:
    return load_name(globals(), name, _MODULES.get(name, "framework.feature"))


def __dir__() -> list[str]:
    return public_names(globals())
