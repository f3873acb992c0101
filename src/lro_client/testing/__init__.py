"""For tests of code that uses the client: an operation of an hour in milliseconds, and faults.

A :class:`ScriptedServer` answers as a test says, in memory, on a :class:`VirtualClock` that only
moves while the code under test waits.
"""

from lro_client.testing._clock import VirtualClock
from lro_client.testing._script import Fault, ServerCall
from lro_client.testing._server import ScriptedServer, UnscriptedCall

__all__ = ["Fault", "ScriptedServer", "ServerCall", "UnscriptedCall", "VirtualClock"]
