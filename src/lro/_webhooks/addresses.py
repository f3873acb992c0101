"""The check that a webhook is sent only to global IP addresses, by a table in this module.

``ipaddress.is_global`` differs between versions of Python. It also accepts addresses of gateways to
IPv4 addresses that are not global (NAT64, 6to4). The table has the special-purpose addresses of
IANA (RFC 6890), and the addresses that clouds use in place of link-local addresses.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Final

_REFUSED_V4: Final = tuple(
    ipaddress.IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # shared by the customers of a provider
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # the platform below Azure's machines
        "169.254.0.0/16",  # link-local, and the metadata of clouds
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # assignments of the IETF
        "192.0.2.0/24",  # documentation
        "192.31.196.0/24",  # AS112
        "192.52.193.0/24",  # AMT
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",  # private
        "192.175.48.0/24",  # AS112
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
)
_GLOBAL_V6: Final = ipaddress.IPv6Network("2000::/3")
_REFUSED_V6: Final = tuple(
    ipaddress.IPv6Network(network)
    for network in (
        "2001::/23",  # assignments of the IETF: ORCHID, benchmarks, AMT
        "2001:db8::/32",  # documentation
        "2620:4f:8000::/48",  # AS112
        "3fff::/20",  # documentation
    )
)
_MAPPED: Final = ipaddress.IPv6Network("::ffff:0:0/96")
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_SIX_TO_FOUR: Final = ipaddress.IPv6Network("2002::/16")
_TEREDO: Final = ipaddress.IPv6Network("2001::/32")


def is_global(address: str) -> bool:
    """Return True for a global address, which may belong to a host anywhere on the internet.

    All IPv4 addresses within an IPv6 address must be global too, whether the IPv6 address is
    IPv4-mapped or an address of NAT64 (RFC 6052), 6to4 (RFC 3056) or Teredo (RFC 4380). The result
    is False for a text that is not an address.
    """
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv4Address):
        return _is_global_v4(found)
    if found.scope_id is not None:  # valid only on one network link
        return False
    carried = _carried(found)
    if carried:
        return all(map(_is_global_v4, carried))
    return found in _GLOBAL_V6 and not any(found in network for network in _REFUSED_V6)


def _is_global_v4(address: ipaddress.IPv4Address) -> bool:
    return not any(address in network for network in _REFUSED_V4)


def _carried(address: ipaddress.IPv6Address) -> Sequence[ipaddress.IPv4Address]:
    number = int(address)
    last = ipaddress.IPv4Address(number & 0xFFFFFFFF)
    if address in _MAPPED or address in _NAT64:
        return (last,)
    if address in _SIX_TO_FOUR:
        return (ipaddress.IPv4Address(number >> 80 & 0xFFFFFFFF),)
    if address in _TEREDO:  # Teredo's server, and the client, whose bits are inverted
        server = ipaddress.IPv4Address(number >> 64 & 0xFFFFFFFF)
        return server, ipaddress.IPv4Address(int(last) ^ 0xFFFFFFFF)
    return ()
