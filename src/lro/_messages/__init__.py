"""Message classes and their JSON and binary forms (spec §1)."""
