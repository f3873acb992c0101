"""Webhooks: the events sent when operations end, their endpoints, and retries."""
