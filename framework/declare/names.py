"""Derive names from where a class stands, never from settings, so that every process agrees on them."""

from framework.text import underscored

_SUFFIX = "Worker"


def wire_name(module: str, class_name: str) -> str:
    """Return the name of a class on the wire: ``workers.chaos.sleep_worker``, ``SleepWorker`` gives ``Chaos::SleepWorker``.

    The module path is dropped through its last package called ``workers``, else through its first package; the module's
    own name is dropped; the rest is written in CamelCase. A nested class keeps its outer classes.
    """
    packages = module.split(".")[:-1]
    if "workers" in packages:
        last = len(packages) - 1 - packages[::-1].index("workers")
        packages = packages[last + 1 :]
    else:
        packages = packages[1:]
    segments = [camel for camel in map(_camel_case, packages) if camel]
    return "::".join([*segments, *class_name.split(".")])


def class_name_of(function: str) -> str:
    """Return the name of the class that stands for a function as a job: ``send_welcome`` gives ``SendWelcomeWorker``.

    A method keeps its class: ``Invoice.send`` gives ``Invoice.SendWorker``.
    """
    owner, dot, name = function.rpartition(".")
    return f"{owner}{dot}{_camel_case(name)}{_SUFFIX}"


def queue_name(wire_name: str, namespace: str | None) -> str:
    """Return the generated queue: no ``Worker`` suffix, underscored as Rails does, after its namespace and a colon.

    ``HTTPHookWorker`` gives ``http_hook``. A class called just ``Worker`` keeps its name, as a queue needs one.
    """
    stem = wire_name.removesuffix(_SUFFIX)
    if not stem or stem.endswith("::"):
        stem = wire_name
    base = underscored(stem)
    return f"{namespace}:{base}" if namespace else base


def _camel_case(package: str) -> str:
    return "".join(part[0].upper() + part[1:] for part in package.split("_") if part)
