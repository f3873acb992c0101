"""The reference server: ten analysis verbs as long-running operations (spec §10)."""
