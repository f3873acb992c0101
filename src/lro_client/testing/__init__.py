"""Tools to test code that uses the client: an operation of an hour takes milliseconds.

A :class:`ScriptedServer` follows the test's script, in memory, on a :class:`VirtualClock` whose
time passes only while the code under test waits. The script can make calls fail.
"""

from lro_client.testing._clock import VirtualClock
from lro_client.testing._script import Fault, ServerCall
from lro_client.testing._server import ScriptedServer, UnscriptedCall

__all__ = ["Fault", "ScriptedServer", "ServerCall", "UnscriptedCall", "VirtualClock"]
