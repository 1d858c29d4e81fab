"""Define the record of rate limiters."""

from typing import Any

from framework.feature import Feature, Figures, Late, LateCommand, Rights
from framework.features.limiters import keys

_READ: Late[Any] = Late("framework.features.limiters.store:READ")

LIMITERS = Feature(
    name="limiters",
    places={keys.limiter(""): "limiters"},
    explain=Late("framework.features.limiters.explain:LimiterReader"),
    rights={
        "producer": Rights(
            keys=(keys.NAMES, keys.limiter("*")),
            scripts=(
                Late("framework.features.limiters.store:TAKE"),
                Late("framework.features.limiters.store:LOCK"),
                Late("framework.features.limiters.store:UNLOCK"),
                _READ,
            ),
        ),
        "operator": Rights(scripts=(_READ,)),
        "read-only": Rights(scripts=(_READ,)),
    },
    figures=Figures(reader=Late("framework.features.limiters.figures:LimiterFigures"), part="limiters/figures"),
    pages=(Late("framework.features.limiters.page:LimitersPage"),),
    commands=(
        LateCommand(
            "limiters",
            "Show rate limiters, and resize or reset them.",
            Late("framework.features.limiters.commands:limiters"),
        ),
    ),
)
