"""Define the record of the reliable push."""

from framework.feature import Feature, Figures, Late, LateCommand

RELIABLE_PUSH = Feature(
    name="reliable_push",
    fallback=Late("framework.features.reliable_push.push:push_fallback"),
    figures=Figures(reader=Late("framework.features.reliable_push.figures:KeptPushFigures")),
    causes=Late("framework.features.reliable_push.causes:KeptPushCauses"),
    pages=(Late("framework.features.reliable_push.page:KeptPushesPage"),),
    commands=(
        LateCommand(
            "pushes",
            "Show and replay the pushes that are kept while Redis is down.",
            Late("framework.features.reliable_push.commands:pushes"),
        ),
    ),
)
