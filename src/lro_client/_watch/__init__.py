"""Waiting for many operations at once: their states, due times and pollers."""
