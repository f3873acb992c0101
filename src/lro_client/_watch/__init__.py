"""Waiting for many operations at once: what is known, what is due, who asks."""
