import asyncio
import time
from contextlib import aclosing
from pathlib import Path

import pytest

from services.discovery.kmsg import follow
from services.discovery.tools import TOOLS, Look, VendorTool, ask, ask_one, find_program, run
from shared.devices.model import RawDevice
from tests.unit.discovery.trees import tool
from tests.unit.vendors.captures import FOLDER

NVIDIA, AMD, HUAWEI = TOOLS
T4X2, MI210, NPUS, DUO = (
    FOLDER / name
    for name in (
        "nvidia_smi_t4x2_v11.xml",
        "rocm_smi_mi210x2.json",
        "npu_smi_info_910bx2.txt",
        "npu_smi_info_310p_duo.txt",
    )
)


def gpu(address: str) -> RawDevice:
    return RawDevice(vendor="nvidia", bus_address=address, sources=("pci",))


A, B = gpu("0000:3b:00.0"), gpu("0000:af:00.0")


def is_over(pid: str) -> bool:
    """Gone, or only waiting to be reaped by whoever inherited it."""
    try:
        return Path(f"/proc/{pid.strip()}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


async def look(
    vendor: VendorTool, root: Path, script: str, *known: RawDevice, deadline_s: float = 5.0
) -> Look:
    return await ask(vendor, tool(root, vendor.name, script), known, deadline_s=deadline_s)


async def test_a_tool_is_found_where_vendors_put_it_and_only_when_it_can_run(tmp_path: Path) -> None:
    assert find_program(tmp_path, "nvidia-smi") is None
    program = tool(tmp_path, "nvidia-smi", "")
    assert find_program(tmp_path, "nvidia-smi") == program
    program.chmod(0o644)
    (tmp_path / "opt/rocm/bin").mkdir(parents=True)
    assert find_program(tmp_path, "nvidia-smi") is None


async def test_a_program_that_answers_fails_hangs_or_cannot_start_is_told_apart(tmp_path: Path) -> None:
    fine = await run(tool(tmp_path, "a", 'echo "$1"'), ["hello"], 5)
    assert (fine.answer, fine.text) == ("answered", "hello\n")
    bad = await run(tool(tmp_path, "b", "echo no such device >&2; exit 9"), [], 5)
    assert (bad.answer, "no such device" in bad.detail) == ("failed", True)
    assert (await run(tmp_path / "missing", [], 5)).answer == "failed"
    hung = await run(tool(tmp_path, "c", "sleep 3600"), [], 0.1)
    assert (hung.answer, "0.1 s" in hung.detail) == ("hung", True)


async def test_a_program_that_hangs_is_ended_with_all_its_children(tmp_path: Path) -> None:
    program = tool(tmp_path, "c", f"sleep 3600 & echo $! > {tmp_path}/child; wait")
    await run(program, [], 0.3)
    assert is_over((tmp_path / "child").read_text())


async def test_a_program_that_prints_without_end_is_cut_and_refused(tmp_path: Path) -> None:
    output = await run(tool(tmp_path, "d", "head -c 20000000 /dev/zero"), [], 20)
    assert output.answer == "failed"
    assert "more than" in output.detail


async def test_a_cancelled_run_leaves_no_process(tmp_path: Path) -> None:
    running = asyncio.create_task(
        run(
            tool(tmp_path, "e", f"echo $$ > {tmp_path}/p; mv {tmp_path}/p {tmp_path}/pid; sleep 3600"), [], 60
        )
    )
    async with asyncio.timeout(10):
        async with aclosing(follow(tmp_path / "pid", poll_s=0.005)) as started:
            (pid,) = await anext(started)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert is_over(pid.decode())


async def test_all_devices_come_from_one_call_and_one_not_listed_has_failed(tmp_path: Path) -> None:
    said = await look(NVIDIA, tmp_path, f"cat {T4X2}", A, B, gpu("0000:ff:00.0"))
    assert said.devices[0].serial == "0329001000011"
    assert said.answers == {A.key: "answered", B.key: "answered", "nvidia-0000-ff-00-0": "failed"}
    assert "does not list" in said.detail["nvidia-0000-ff-00-0"]


ONE_HANGS = f"""
case "$*" in
  *0000:3b:00.0) cat {T4X2} ;;
  *) sleep 3600 ;;
esac"""


async def test_a_hang_is_the_silence_of_its_device_only(tmp_path: Path) -> None:
    started = time.monotonic()
    said = await look(NVIDIA, tmp_path, ONE_HANGS, A, B, deadline_s=0.5)
    assert said.answers[A.key] == "answered"
    assert said.answers[B.key] in ("answered", "hung")  # the fixture of the one describes both
    assert not said.dark
    assert time.monotonic() - started < 4


async def test_a_tool_that_fails_for_all_is_dark_and_blames_no_device(tmp_path: Path) -> None:
    said = await look(NVIDIA, tmp_path, "echo driver/library version mismatch; exit 18", A, B)
    assert said.answers == {}
    assert "version mismatch" in said.dark


async def test_output_that_cannot_be_read_is_a_failed_answer(tmp_path: Path) -> None:
    said = await look(NVIDIA, tmp_path, f"head -c 3000 {T4X2}", A)
    assert "no complete XML" in said.dark


async def test_one_device_is_asked_for_by_its_address(tmp_path: Path) -> None:
    program = tool(tmp_path, "nvidia-smi", f'[ "$4" = 0000:3b:00.0 ] && cat {T4X2}')
    assert (await ask_one(NVIDIA, program, A, deadline_s=5)).answers[A.key] == "answered"
    other = gpu("0000:01:00.0")
    program = tool(tmp_path, "nvidia-smi", f"cat {T4X2}")
    said = await ask_one(NVIDIA, program, other, deadline_s=5)
    assert (said.answers, said.detail) == (
        {other.key: "failed"},
        {other.key: "nvidia-smi describes another device"},
    )


async def test_a_device_without_a_name_for_its_tool_cannot_be_asked_for(tmp_path: Path) -> None:
    card = RawDevice(vendor="amd", bus_address="0000:83:00.0")
    said = await ask_one(AMD, tool(tmp_path, "rocm-smi", f"cat {MI210}"), card, deadline_s=5)
    assert "cannot name it" in said.detail[card.key]
    known = (await look(AMD, tmp_path, f"cat {MI210}", card)).devices[0]
    assert (await ask_one(AMD, tmp_path / "usr/bin/rocm-smi", known, deadline_s=5)).answers[
        card.key
    ] == "answered"


PAGES = f"""
case "$*" in
  info) cat {NPUS} ;;
  "info -t board -i 4") sleep 3600 ;;
  "info -t board -i 0") printf 'NPU ID : 0\\nSerial Number : S0\\nPCIe Bus Info : 0000:C1:00.0\\n' ;;
  "info -t ecc -i 0") printf 'NPU ID : 0\\nHBM Double Bit Error Count : 3\\n' ;;
  *) exit 1 ;;
esac"""


async def test_further_pages_are_joined_and_one_that_hangs_is_its_device_s_silence(tmp_path: Path) -> None:
    said = await look(HUAWEI, tmp_path, PAGES, deadline_s=1.0)
    first, second = said.devices
    assert (first.serial, first.readings.ecc_uncorrected, first.readings.health_word) == ("S0", 3, "ok")
    assert first.raw["npu-smi"]["memory_total_bytes"] == 65536 << 20
    assert said.answers == {first.key: "answered", second.key: "hung"}
    alone = await ask_one(HUAWEI, tmp_path / "usr/bin/npu-smi", first, deadline_s=1.0)
    assert alone.devices[0].readings.ecc_uncorrected == 3


async def test_pages_that_say_nothing_leave_the_description_as_it_is(tmp_path: Path) -> None:
    said = await look(HUAWEI, tmp_path, f'[ "$*" = info ] && cat {DUO} || echo none')
    assert len(said.devices) == 3
    assert set(said.answers.values()) == {"answered"}
    unnamed = RawDevice(vendor="huawei", bus_address="0000:81:00.0")
    assert (
        "cannot name it" in (await ask_one(HUAWEI, tmp_path / "x", unnamed, deadline_s=1)).detail[unnamed.key]
    )
