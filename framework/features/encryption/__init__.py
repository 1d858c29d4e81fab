"""Define the record of encryption."""

from framework.feature import Feature, Figures, Late, LateCommand

ENCRYPTION = Feature(
    name="encryption",
    explain=Late("framework.features.encryption.explain:ProtectionReader"),
    protection=Late("framework.features.encryption.protection:configured_protection"),
    block_store=Late("framework.features.encryption.stored_blocks:stored_blocks"),
    worker=Late("framework.features.encryption.worker:worker_part"),
    problems=Late("framework.features.encryption.protection:key_problems"),
    pages=(Late("framework.features.encryption.page:PayloadStorePage"),),
    figures=Figures(reader=Late("framework.features.encryption.figures:PayloadStoreFigures")),
    commands=(
        LateCommand(
            "encryption",
            "Make keys for encrypted arguments, and show the jobs of each.",
            Late("framework.features.encryption.commands:encryption"),
        ),
        LateCommand(
            "payloads",
            "Show and sweep the store of large arguments.",
            Late("framework.features.encryption.commands:payloads"),
        ),
    ),
)
