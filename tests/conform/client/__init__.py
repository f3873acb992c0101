"""The judge of clients: peers, checks, and clients that are judged."""
