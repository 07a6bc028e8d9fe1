"""A bridge, and for each node a pair of virtual cables into its network namespace.

Nodes and pods of all nodes reach each other, the machine and the API server; nothing leaves the machine.
"""

from __future__ import annotations

import json

from tests.lab.layout import FIRST, LAST, Layout
from tests.lab.system import LabError, run


async def free_block() -> int:
    """The first 10.<n>.0.0/16 that no route of this machine touches."""
    routes = json.loads(await run("ip", "-j", "-4", "route", "show", "table", "all"))
    taken = {each["dst"].split(".")[1] for each in routes if each["dst"].startswith("10.")}
    for block in range(FIRST, LAST):
        if str(block) not in taken:
            return block
    raise LabError(f"no free network among 10.{FIRST}.0.0/16 to 10.{LAST - 1}.0.0/16")


async def make_bridge(layout: Layout) -> None:
    """The bridge, with the addresses of the machine, of the API server and of DNS."""
    await run("ip", "link", "add", layout.bridge, "type", "bridge")
    await run("ip", "address", "add", f"{layout.gateway}/24", "dev", layout.bridge)
    for address in (layout.api_address, layout.dns_address):
        await run("ip", "address", "add", f"{address}/32", "dev", layout.bridge)
    await run("ip", "link", "set", layout.bridge, "up")


def cable(layout: Layout, index: int) -> str:
    """The machine's end of a node's cable."""
    return f"{layout.bridge}-{index}"


async def join(layout: Layout, index: int, pid: int, others: list[int]) -> None:
    """Connect the network namespace of a process."""
    name = cable(layout, index)
    await run("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
    await run("ip", "link", "set", name, "master", layout.bridge, "up")
    await run("ip", "route", "replace", layout.pods(index), "via", layout.node_address(index))

    async def inside(*words: str) -> None:
        # Not `ip netns exec`: that mounts a new /sys, without cgroups.
        await run("nsenter", "--target", str(pid), "--net", "ip", *words)

    await inside("link", "set", "lo", "up")
    await inside("address", "add", f"{layout.node_address(index)}/24", "dev", "eth0")
    await inside("link", "set", "eth0", "up")
    await inside("route", "add", "default", "via", layout.gateway)
    for each in others:
        await inside("route", "add", layout.pods(each), "via", layout.node_address(each))


async def set_cable(layout: Layout, index: int, *, up: bool) -> None:
    """Plug the cable in, or pull it."""
    await run("ip", "link", "set", cable(layout, index), "up" if up else "down")


async def devices(layout: Layout) -> list[str]:
    """The lab's network devices on the machine."""
    links = json.loads(await run("ip", "-j", "link", "show"))
    return [
        each["ifname"]
        for each in links
        if each["ifname"] == layout.bridge or each["ifname"].startswith(f"{layout.bridge}-")
    ]


async def remove(layout: Layout) -> None:
    """Remove what is left; addresses and routes go with their devices."""
    for name in await devices(layout):
        if name in await devices(layout):  # a cable goes with its namespace, at any moment
            try:
                await run("ip", "link", "delete", name)
            except LabError:
                if name in await devices(layout):
                    raise
