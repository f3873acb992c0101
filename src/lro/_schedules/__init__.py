"""Schedules: the ticks of periodic jobs, and what starts an operation at each."""
