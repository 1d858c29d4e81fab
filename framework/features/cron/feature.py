"""The record of cron."""

from framework.feature import Feature, Late

CRON = Feature(name="cron", problems=Late("framework.cron.entries:schedule_problems"))
