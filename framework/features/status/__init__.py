"""Define the record of status."""

from framework.feature import Feature
from framework.wire.keys import status

STATUS = Feature(name="status", places={status(""): "states"})
