"""The journal of starts, which survives the program."""
