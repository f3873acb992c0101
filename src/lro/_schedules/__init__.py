"""Schedules: start an operation at each tick of a cron expression or an interval."""
