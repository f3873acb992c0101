"""Judge clients: scripted servers (peers) that they call, and checks of their behaviour."""
