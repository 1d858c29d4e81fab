"""The worker classes of the sample platform: the dashboard shows their attributes and routes. None of their jobs runs."""

from framework.application_worker import ApplicationWorker
from framework.devtools.sample_platform import BAD_DEPLOY, FLOOD, SLOW, STUCK, SampleClass, sample_classes


def perform(self: ApplicationWorker, record_id: int) -> None:
    """Do nothing: no process runs these classes."""


def declare_workers(module: str) -> list[type[ApplicationWorker]]:
    """Declare the classes as those of a module: an import of this file alone must declare none."""
    return [_declare(one, module) for one in sample_classes()]


def _declare(one: SampleClass, module: str) -> type[ApplicationWorker]:
    facts: dict[str, object] = {
        "__doc__": f"Stand for the jobs of {one.area}.",
        "__module__": module,
        "wire_name": one.name,
        "feature_category": one.area,
        "perform": perform,
        "loggable_arguments": ("record_id",),
    }
    if one.name == BAD_DEPLOY:
        facts["urgency"] = "high"
    if one.name in (SLOW, FLOOD):
        facts["urgency"] = "throttled"
    if one.name == STUCK:
        facts["concurrency_limit"] = 3
    return type(one.name.rpartition("::")[2], (ApplicationWorker,), facts)
