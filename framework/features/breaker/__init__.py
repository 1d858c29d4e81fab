"""Define the record of the breaker of a class."""

from typing import Any

from framework.feature import Feature, Late, LateCommand, Rights

_CHANGE: Late[Any] = Late("framework.features.breaker.store:CHANGE")
_SCRIPTS = tuple(Late[Any](f"framework.features.breaker.store:{name}") for name in ("START", "TEND"))

BREAKER = Feature(
    name="breaker",
    rights={"worker": Rights(scripts=_SCRIPTS), "operator": Rights(scripts=(_CHANGE,))},
    observer=Late("framework.features.breaker.observer:observer"),
    worker=Late("framework.features.breaker.admission:worker_part"),
    notices=Late("framework.features.breaker.explain:notices"),
    causes=Late("framework.features.breaker.causes:BreakerCauses"),
    explain=Late("framework.features.breaker.explain:BreakerReader"),
    pages=(Late("framework.features.breaker.page:BreakersPage"),),
    class_actions=(Late("framework.features.breaker.page:OpenBreaker"),),
    commands=(
        LateCommand(
            "breakers",
            "Show, open and close the breakers of classes.",
            Late("framework.features.breaker.commands:breakers"),
        ),
    ),
)
