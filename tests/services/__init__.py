"""Real servers that tests start for themselves, on their own ports and in their own directories."""
