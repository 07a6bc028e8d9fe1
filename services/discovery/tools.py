"""Run vendor tools under a host's root, each call within a deadline, and never believe more than they say.

A tool is first asked for all its devices. When that hangs or fails, each device is asked for alone and in
parallel, so that the one that makes the tool hang is known and the others are still seen. A process that
cannot be killed (stuck in the kernel) is left behind after a moment; the probe goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import structlog

from shared.devices.model import RawDevice
from shared.devices.readings import Readings
from shared.errors import BadInput
from shared.vendors.captures import npu_smi_text, rocm_smi_json
from shared.vendors.captures.figures import LARGEST_CAPTURE_BYTES

TOOL_DIRECTORIES = ("usr/bin", "usr/local/bin", "opt/rocm/bin", "usr/local/sbin")
"""Where vendors install their tools, below the host's root."""

_LEAVE_BEHIND_S = 2.0
Answer = Literal["answered", "hung", "failed"]
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class VendorTool:
    """How one vendor's tool is asked.

    Attributes:
        vendor: whose devices it knows.
        name: of the program.
        everything: arguments that make it describe all devices.
        one: arguments that make it describe one device; None when the device cannot be named to the tool.
        more: further questions for a device it described; their pages are read together with the description.
        parse: reads what it prints.
    """

    vendor: str
    name: str
    everything: tuple[str, ...]
    one: Callable[[RawDevice], tuple[str, ...] | None]
    parse: Callable[[str], list[RawDevice]]
    more: Callable[[RawDevice], tuple[tuple[str, ...], ...]] = lambda _: ()


@dataclass(frozen=True, slots=True)
class Output:
    """What one run gave: what it printed, or why there is nothing."""

    answer: Answer
    text: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Look:
    """What a tool said in one round.

    Attributes:
        devices: as it described them.
        answers: by device key, for the devices that were asked for; a device that the tool did not list is
        "failed". detail: by device key, why there is no answer. dark: the tool failed for every device:
        nothing is known, and nothing is wrong with a device.
    """

    devices: tuple[RawDevice, ...] = ()
    answers: dict[str, Answer] = field(default_factory=dict)
    detail: dict[str, str] = field(default_factory=dict)
    dark: str = ""


def _nvidia(text: str) -> list[RawDevice]:
    from shared.vendors.captures import nvidia_smi_xml  # noqa: PLC0415 - XML only on nodes that have NVIDIA's tool

    return nvidia_smi_xml.parse(text)


def _amd_one(device: RawDevice) -> tuple[str, ...] | None:
    card = device.raw.get(rocm_smi_json.TOOL, {}).get("card")
    return None if card is None else ("-d", str(card), *rocm_smi_json.ARGUMENTS)


def _huawei_one(device: RawDevice) -> tuple[str, ...] | None:
    npu = device.raw.get(npu_smi_text.TOOL, {}).get("npu_id")
    return None if npu is None else ("info", "-t", "board", "-i", str(npu))


def _huawei_more(device: RawDevice) -> tuple[tuple[str, ...], ...]:
    npu = device.raw.get(npu_smi_text.TOOL, {}).get("npu_id")
    return () if npu is None else tuple(("info", "-t", page, "-i", str(npu)) for page in ("board", "ecc"))


TOOLS: tuple[VendorTool, ...] = (
    VendorTool(
        "nvidia", "nvidia-smi", ("-q", "-x"), lambda device: ("-q", "-x", "-i", device.bus_address), _nvidia
    ),
    VendorTool("amd", rocm_smi_json.TOOL, rocm_smi_json.ARGUMENTS, _amd_one, rocm_smi_json.parse),
    VendorTool(
        "huawei", npu_smi_text.TOOL, npu_smi_text.ARGUMENTS, _huawei_one, npu_smi_text.parse, _huawei_more
    ),
)
"""The tools that can be asked; a vendor without one is known from sysfs and the kernel log."""


def find_program(root: Path, name: str) -> Path | None:
    """The tool's executable under the root; None when it is not installed."""
    for directory in TOOL_DIRECTORIES:
        program = root / directory / name
        if os.access(program, os.X_OK):
            return program
    return None


async def run(program: Path, arguments: Sequence[str], deadline_s: float) -> Output:
    """Run a program and wait for its end, at most ``deadline_s``; its whole process group ends with it."""
    try:
        process = await asyncio.create_subprocess_exec(
            program,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
            limit=LARGEST_CAPTURE_BYTES,
        )
    except OSError as error:
        return Output("failed", detail=f"{program.name} cannot be started: {error.strerror}")
    reading = asyncio.create_task(_read(process), name=f"tool-{program.name}")
    try:
        async with asyncio.timeout(deadline_s):
            printed = await asyncio.shield(reading)
    except TimeoutError:
        return Output("hung", detail=f"{program.name} gave no answer within {deadline_s:g} s")
    finally:
        await _end(process, reading)
    text = printed.decode("utf-8", "replace")
    if process.returncode:
        said = " ".join(text.split())[:200]
        return Output("failed", detail=f"{program.name} ended with status {process.returncode}: {said}")
    if len(printed) > LARGEST_CAPTURE_BYTES:
        return Output("failed", detail=f"{program.name} printed more than {LARGEST_CAPTURE_BYTES} bytes")
    return Output("answered", text)


async def _read(process: asyncio.subprocess.Process) -> bytes:
    """All that it prints, and its end; what is beyond the bound is read and forgotten."""
    chunks: list[bytes] = []
    size = 0
    stream = process.stdout
    while stream is not None and (chunk := await stream.read(65536)):
        if size <= LARGEST_CAPTURE_BYTES:
            chunks.append(chunk)
            size += len(chunk)
    await process.wait()
    return b"".join(chunks)


async def _end(process: asyncio.subprocess.Process, reading: asyncio.Task[bytes]) -> None:
    """See to it that nothing of the process is left; give up after a moment on one stuck in the kernel."""
    if not reading.done():  # the program itself may have ended; a child of it may still hold its output
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    _, stuck = await asyncio.wait({reading}, timeout=_LEAVE_BEHIND_S)
    if stuck:
        reading.cancel()
        process._transport.close()  # type: ignore[attr-defined] # noqa: SLF001 - asyncio has no public way to let go of a child
        log.warning("tool left behind", pid=process.pid)


async def ask(tool: VendorTool, program: Path, known: Sequence[RawDevice], *, deadline_s: float) -> Look:
    """One round over all devices of a vendor.

    Args:
        tool: how to ask.
        program: its executable.
        known: the vendor's physical devices that sysfs shows, with what earlier rounds know of them.
        deadline_s: for each call.
    """
    output = await run(program, tool.everything, deadline_s)
    devices, output = _parsed(tool, output)
    if output.answer == "answered":
        devices, answers, detail = await _ask_more(tool, program, devices, deadline_s)
        listed = {device.key for device in devices}
        for device in known:
            if device.key not in listed:
                answers[device.key] = "failed"
                detail[device.key] = f"{tool.name} does not list it"
        return Look(tuple(devices), answers, detail)
    looks = await asyncio.gather(*(ask_one(tool, program, device, deadline_s=deadline_s) for device in known))
    answers = {key: answer for look in looks for key, answer in look.answers.items()}
    if not any(answer in ("answered", "hung") for answer in answers.values()):
        return Look(dark=output.detail)
    return Look(
        tuple(device for look in looks for device in look.devices),
        answers,
        {key: text for look in looks for key, text in look.detail.items()},
    )


async def ask_one(tool: VendorTool, program: Path, device: RawDevice, *, deadline_s: float) -> Look:
    """One round for one device; its siblings are not touched."""
    arguments = tool.one(device)
    if arguments is None:
        return Look(answers={device.key: "failed"}, detail={device.key: f"{tool.name} cannot name it"})
    questions = (arguments, *(each for each in tool.more(device) if each != arguments))
    outputs = await asyncio.gather(*(run(program, question, deadline_s) for question in questions))
    bad = next((output for output in outputs if output.answer != "answered"), None)
    output = bad or Output("answered", _transcript(tool, questions, outputs))
    devices, output = _parsed(tool, output)
    if output.answer == "answered" and device.key not in {each.key for each in devices}:
        output = Output("failed", detail=f"{tool.name} describes another device")
    if output.answer != "answered":
        return Look(answers={device.key: output.answer}, detail={device.key: output.detail})
    return Look(tuple(devices), {each.key: "answered" for each in devices})


async def _ask_more(
    tool: VendorTool, program: Path, devices: list[RawDevice], deadline_s: float
) -> tuple[list[RawDevice], dict[str, Answer], dict[str, str]]:
    """Add the pages that the description lacks; a page that hangs is the silence of its device only."""
    answers: dict[str, Answer] = {device.key: "answered" for device in devices}
    detail: dict[str, str] = {}
    whole = [device for device in devices if device.partition is None and tool.more(device)]
    pages = await asyncio.gather(*(_pages(tool, program, device, deadline_s) for device in whole))
    by_key = {device.key: device for device in devices}
    for device, page in zip(whole, pages, strict=True):
        if isinstance(page, Output):
            answers[device.key], detail[device.key] = page.answer, page.detail
        else:
            by_key[device.key] = _add(by_key[device.key], page)
    return list(by_key.values()), answers, detail


async def _pages(tool: VendorTool, program: Path, device: RawDevice, deadline_s: float) -> RawDevice | Output:
    questions = tool.more(device)
    outputs = await asyncio.gather(*(run(program, question, deadline_s) for question in questions))
    hung = next((output for output in outputs if output.answer == "hung"), None)
    if hung is not None:
        return hung
    text = _transcript(tool, questions, outputs)
    devices, output = _parsed(tool, Output("answered", text))
    return next((each for each in devices if each.key == device.key), device) if output.text else device


def _transcript(tool: VendorTool, questions: Sequence[tuple[str, ...]], outputs: Sequence[Output]) -> str:
    if len(questions) == 1:
        return outputs[0].text
    said = zip(questions, outputs, strict=True)
    return "\n".join(f"{tool.name} {' '.join(question)}\n{output.text}" for question, output in said)


def _add(device: RawDevice, page: RawDevice) -> RawDevice:
    readings = {
        name: value
        for name in Readings.__slots__
        if (value := getattr(page.readings, name)) not in (None, ())
    }
    raw = {source: {**device.raw.get(source, {}), **facts} for source, facts in page.raw.items()}
    return device.model_copy(
        update={
            "serial": page.serial or device.serial,
            "raw": {**device.raw, **raw},
            "readings": replace(device.readings, **readings),
        }
    )


def _parsed(tool: VendorTool, output: Output) -> tuple[list[RawDevice], Output]:
    """Devices of an output; one that cannot be read is a failed answer."""
    if output.answer != "answered":
        return [], output
    try:
        return tool.parse(output.text), output
    except BadInput as error:
        log.warning("tool output refused", tool=tool.name, field=error.field, problem=error.problem)
        return [], Output("failed", detail=str(error))
