"""Define the record of deployment: what runs an installation on many machines, written from its own configuration."""

from framework.feature import Feature, Late, LateCommand

DEPLOYMENT = Feature(
    name="deployment",
    commands=(
        LateCommand(
            "deploy",
            "Write an image, manifests, a chart or units for an installation.",
            Late("framework.features.deployment.commands:deploy"),
        ),
    ),
)
