"""Refuse the jobs with one label, and count the rounds of periodic work."""

from framework.declare.declaration import Declaration
from framework.execute.admission import AdmissionRequest, StagedPolicy
from framework.features.toy.payload import LABEL
from framework.features.toy.settings import ToySettings
from framework.finish.outcome import Discarded, NotAdmitted
from framework.process.worker_parts import ProcessContext, WorkerPart
from framework.store.script import Script

COUNT = Script("toy/count", "time")


class LabelPolicy:
    def __init__(self, refused: str) -> None:
        self._refused = refused

    def applies_to(self, declaration: Declaration) -> bool:
        return declaration.facts["toy_label"] is not None

    def admit(self, request: AdmissionRequest) -> NotAdmitted | None:
        if request.payload.get(LABEL) != self._refused:
            return None
        return Discarded("its label is refused", "middleware")


def worker_part(process: ProcessContext) -> WorkerPart:
    """Return the part of the toy in a worker process."""
    settings = process.settings
    assert isinstance(settings, ToySettings)

    def count() -> None:
        COUNT(process.upkeep, ["aw:toy:rounds"], [])

    return WorkerPart((StagedPolicy("end", LabelPolicy(settings.toy_refused)),), periodic=(count,))
