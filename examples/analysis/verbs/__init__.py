"""The ten verbs: each module has ``check`` (called at the POST), ``STAGES``, and the work."""
