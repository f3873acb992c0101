"""Long-running operations for Python: the server core (google.longrunning, AIP-151)."""
