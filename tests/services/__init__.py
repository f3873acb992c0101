"""Real servers that tests start for themselves, with their own ports and directories."""
