from pathlib import Path

from services.discovery.inventory import Inventory
from services.discovery.prober import Prober
from services.discovery.tools import Look
from shared.clock import ManualClock
from shared.devices.model import RawDevice
from tests.unit.discovery.trees import NPU, T4, pci, tool
from tests.unit.vendors.captures import FOLDER


def told(address: str, *warnings: str) -> RawDevice:
    return RawDevice(
        vendor="nvidia",
        bus_address=address,
        raw={"nvidia-smi": {}},
        sources=("nvidia-smi",),
        warnings=warnings,
    )


def test_what_a_tool_still_lists_after_it_left_the_bus_is_gone(tmp_path: Path) -> None:
    directory = pci(tmp_path, "0000:3b:00.0", T4)
    inventory = Inventory(tmp_path)
    inventory.scan()
    look = Look((told("0000:3b:00.0", "a doubt"),), {"nvidia-0000-3b-00-0": "answered"})
    difference, before = inventory.take("nvidia", look)
    assert ([device.key for device in difference.discovered], before) == (["nvidia-0000-3b-00-0"], {})
    assert inventory.vendors == {"nvidia"}
    directory.rename(tmp_path / "gone")
    difference, before = inventory.take("nvidia", look)
    assert [device.key for device in difference.removed] == list(before)
    assert inventory.devices == {}


def test_problems_are_told_once(tmp_path: Path, capsys: object) -> None:
    del capsys
    pci(tmp_path, "0000:3b:00.0", {**T4, "numa_node": "x"})
    inventory = Inventory(tmp_path)
    inventory.scan()
    first = inventory._problems
    inventory.scan()
    assert inventory._problems == first
    assert len(first) == 1


async def test_a_device_without_a_tool_is_probed_by_sysfs(tmp_path: Path) -> None:
    pci(tmp_path, "0000:c1:00.0", NPU, driver="npu")
    inventory = Inventory(tmp_path)
    inventory.scan()
    inventory.take("huawei", Look())
    (npu,) = inventory.physical()
    probe = await Prober(tmp_path, ManualClock(), deadline_s=1, grace_s=0).probe(npu)
    assert (probe.present, probe.answer, probe.driver) == (True, "none", True)


async def test_a_tool_that_never_answered_is_waited_for_until_the_grace_is_over(tmp_path: Path) -> None:
    pci(tmp_path, "0000:3b:00.0", T4)
    tool(tmp_path, "nvidia-smi", "sleep 3600")
    inventory, clock = Inventory(tmp_path), ManualClock()
    inventory.scan()
    inventory.take("nvidia", Look())
    (gpu,) = inventory.physical()
    prober = Prober(tmp_path, clock, deadline_s=0.1, grace_s=60)
    assert (await prober.probe(gpu)).answer == "waiting"
    clock.advance(61)
    assert (await prober.probe(gpu)).answer == "hung"


async def test_a_tool_that_knows_a_device_by_another_name_describes_it_among_all(tmp_path: Path) -> None:
    pci(tmp_path, "0000:3b:00.0", T4)
    all_only = f'[ "$*" = "-q -x" ] && cat {FOLDER / "nvidia_smi_t4x2_v11.xml"}'
    tool(tmp_path, "nvidia-smi", all_only)
    inventory = Inventory(tmp_path)
    inventory.scan()
    inventory.take("nvidia", Look())
    (gpu,) = inventory.physical()
    assert (await Prober(tmp_path, ManualClock(), deadline_s=5, grace_s=0).probe(gpu)).answer == "answered"
