"""Seeded faults: how many small faults in the source do the tests find?"""
