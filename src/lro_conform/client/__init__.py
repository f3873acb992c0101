"""Judge clients: the scripted servers (peers) that clients call, and checks of the clients."""
