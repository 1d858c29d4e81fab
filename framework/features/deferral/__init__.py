"""Define the record of deferral."""

from framework.feature import Feature, Figures, Late, LateCommand

DEFERRAL = Feature(
    name="deferral",
    worker=Late("framework.features.deferral.admission:worker_part"),
    explain=Late("framework.features.deferral.explain:FlagReader"),
    figures=Figures(reader=Late("framework.features.deferral.figures:DeferralFigures"), part="deferral/figures"),
    causes=Late("framework.features.deferral.causes:FlagCauses"),
    class_actions=(Late("framework.features.deferral.page_actions:RunDeferredNow"),),
    job_commands=(
        LateCommand(
            "deferred",
            "Show the jobs that a policy deferred, and make them due.",
            Late("framework.features.deferral.commands:deferred"),
        ),
    ),
)
