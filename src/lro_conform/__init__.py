"""Judge any server or client of google.longrunning, in any language (AIP-151).

The command is ``lro conform``. Nothing here uses the server or the client of this project: what
it judges may be written with them.
"""

from lro_conform._checks import Check, Citation, ConformanceReport, Level, Outcome, Verdict

__all__ = ["Check", "Citation", "ConformanceReport", "Level", "Outcome", "Verdict"]
