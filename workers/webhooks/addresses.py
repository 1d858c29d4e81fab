"""Check the addresses behind a user's URL: public ones only, unless the operator allows more.

The name is resolved once, each of its addresses is checked, and the connection goes to a checked address. A name that
answers differently the second time (DNS rebinding) has no effect.
"""

import asyncio
import ipaddress
import os
import socket
from collections.abc import Mapping
from typing import Final, TypeAlias

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

ALLOWED_VARIABLE: Final = "WEBHOOKS_ALLOWED_NETWORKS"
"""Networks that may be called although they are not public, for example ``127.0.0.0/8,fd00::/8``: for tests and intranets."""

_TRANSLATED: Final = ipaddress.ip_network("64:ff9b::/96")
"""Through a NAT64 gateway these lead to any IPv4 address, private ones among them."""


class AddressRefusedError(Exception):
    """The URL leads to an address that users may not call."""


async def checked_addresses(host: str, port: int) -> list[str]:
    """Return the addresses of ``host`` when all of them may be called.

    Raises ``AddressRefusedError``, or ``OSError`` when there is no such name.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [str(entry[4][0]) for entry in found]
    for address in addresses:
        if not _is_allowed(ipaddress.ip_address(address.partition("%")[0])):
            # One refused address refuses the name: the owner of a name chooses the order of its addresses.
            raise AddressRefusedError(f"{host} leads to {address}, which is no public address")
    return addresses


def _is_allowed(address: Address) -> bool:
    address = _embedded_ipv4(address)
    if any(address in network for network in _allowed_networks()):
        return True
    return address.is_global and not address.is_multicast and address not in _TRANSLATED


def _embedded_ipv4(address: Address) -> Address:
    """Return the IPv4 address inside an IPv6 address, where it stands for one."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    return address.ipv4_mapped or address.sixtofour or address


def _allowed_networks(
    environment: Mapping[str, str] = os.environ,
) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    named = environment.get(ALLOWED_VARIABLE, "")
    return [ipaddress.ip_network(network.strip()) for network in named.split(",") if network.strip()]
