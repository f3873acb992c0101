"""The ten verbs: each module has ``check`` (at the POST), ``STAGES``, and the work itself."""
