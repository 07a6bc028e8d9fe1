"""`nvidia-smi -q -x`: the machine output of NVIDIA's tool, schemas v10 to v13.

The schema grows with every driver and renames a few things (throttle reasons, ECC counters); what is read
here is found by its name, under whichever of its parents the driver in question prints. It is the only source
that states engine counts, and only for MIG devices.
"""

from __future__ import annotations

from xml.etree.ElementTree import Element, ParseError

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import fromstring

from shared.devices.keys import device_key, normalise_bus_address
from shared.devices.model import RawDevice
from shared.devices.readings import Readings
from shared.errors import BadInput
from shared.vendors.captures.figures import Distinct, Figures, identity, known, read

TOOL = "nvidia-smi"
ARGUMENTS = ("-q", "-x")
_TEXTS = ("product_name", "product_brand", "product_architecture", "vbios_version", "gsp_firmware_version")
_HOTTEST_C = 200.0


def parse(capture: str | bytes) -> list[RawDevice]:
    """GPUs and their MIG devices.

    Raises:
        BadInput: no XML, cut in the middle, not this tool's output, or an identity that is missing,
        impossible or
            given twice; names the element.
    """
    text = read(capture, TOOL)
    try:
        log = fromstring(text)
    except (ParseError, DefusedXmlException, ValueError) as error:
        raise BadInput(
            TOOL, f"this is no complete XML ({error})", "capture `nvidia-smi -q -x` again, to its last line"
        ) from error
    if log.tag != "nvidia_smi_log":
        raise BadInput(TOOL, f"the root element is {log.tag[:40]!r}", "give the output of `nvidia-smi -q -x`")
    gpus = log.findall("gpu")
    shared = {
        name: value
        for name in ("driver_version", "cuda_version")
        if (value := known(log.findtext(name))) is not None
    }
    distinct = Distinct(TOOL)
    devices: list[RawDevice] = []
    for position, gpu in enumerate(gpus):
        devices.extend(_gpu(gpu, f"{TOOL}.gpu[{position}]", shared, distinct))
    attached = Figures(TOOL).count("attached_gpus", log.findtext("attached_gpus"))
    if devices and attached is not None and attached != len(gpus):
        note = f"{TOOL}.attached_gpus: says {attached}, {len(gpus)} are described; the others are not seen"
        devices[0] = devices[0].model_copy(update={"warnings": (*devices[0].warnings, note)})
    return devices


def _gpu(gpu: Element, where: str, shared: dict[str, str], distinct: Distinct) -> list[RawDevice]:
    printed = known(gpu.findtext("pci/pci_bus_id")) or known(gpu.get("id"))
    if printed is None:
        raise BadInput(f"{where}.pci.pci_bus_id", "is missing", "capture `nvidia-smi -q -x` again")
    address = normalise_bus_address(printed, f"{where}.pci.pci_bus_id")
    distinct.claim("gpu.pci.pci_bus_id", address)
    uuid = identity(gpu.findtext("uuid"))
    serial = identity(gpu.findtext("serial"))
    distinct.claim("gpu.uuid", uuid)
    figures = Figures(where)
    facts: dict[str, object] = {
        **shared,
        **{name: value for name in _TEXTS if (value := known(gpu.findtext(name))) is not None},
        "uuid": uuid,
        "serial": serial,
        "minor_number": figures.count("minor_number", gpu.findtext("minor_number")),
        "pci_id": _pci_id(gpu.findtext("pci/pci_device_id"), figures),
        "mig_mode": known(gpu.findtext("mig_mode/current_mig")),
        "fb_memory_total_bytes": _size(gpu, "total", figures),
        "fb_memory_reserved_bytes": _size(gpu, "reserved", figures),
        "link_generation_max": figures.count(
            "max_link_gen", gpu.findtext("pci/pci_gpu_link_info/pcie_gen/max_link_gen"), highest=9
        ),
        "link_width_max": figures.count(
            "max_link_width", gpu.findtext(_WIDTHS + "max_link_width"), highest=32
        ),
    }
    readings = _readings(gpu, figures)
    parent = RawDevice(
        vendor="nvidia",
        bus_address=address,
        serial=serial or uuid,
        raw={TOOL: _given(facts)},
        sources=(TOOL,),
        readings=readings,
        warnings=figures.warnings,
    )
    children = [
        _mig(mig, f"{where}.mig_device[{position}]", parent, distinct)
        for position, mig in enumerate(gpu.findall("mig_devices/mig_device"))
    ]
    return [parent, *children]


_WIDTHS = "pci/pci_gpu_link_info/link_widths/"


def _mig(mig: Element, where: str, parent: RawDevice, distinct: Distinct) -> RawDevice:
    figures = Figures(where)
    instances: list[int] = []
    for name in ("gpu_instance_id", "compute_instance_id"):
        number = figures.count(name, mig.findtext(name), highest=999)
        if number is None:
            raise BadInput(f"{where}.{name}", "is missing or no number", "capture `nvidia-smi -q -x` again")
        instances.append(number)
    partition = f"mig-{instances[0]}-{instances[1]}"
    distinct.claim(f"{parent.bus_address}.mig_device", partition)
    uuid = identity(mig.findtext("uuid"))
    distinct.claim("mig_device.uuid", uuid)
    own = parent.raw[TOOL]
    kept = ("product_name", "product_architecture", "driver_version", "cuda_version", "uuid", "pci_id")
    facts: dict[str, object] = {
        **{name: own[name] for name in kept if name in own},
        "gpu_instance_id": instances[0],
        "compute_instance_id": instances[1],
        "mig_uuid": uuid,
        "fb_memory_total_bytes": _size(mig, "total", figures),
        "fb_memory_reserved_bytes": _size(mig, "reserved", figures),
        **{
            name: figures.count(name, mig.findtext(f"device_attributes/shared/{name}"), highest=999)
            for name in ("multiprocessor_count", "encoder_count", "decoder_count", "ofa_count", "jpg_count")
        },
    }
    readings = Readings(
        ecc_uncorrected=_sum(mig, "ecc_error_count/volatile_count", figures),
        memory_used_bytes=_size(mig, "used", figures),
    )
    return RawDevice(
        vendor="nvidia",
        bus_address=parent.bus_address,
        partition=partition,
        serial=parent.serial,
        parent=device_key("nvidia", parent.bus_address),
        raw={TOOL: _given(facts)},
        sources=(TOOL,),
        readings=readings,
        warnings=figures.warnings,
    )


def _readings(gpu: Element, figures: Figures) -> Readings:
    link = "pci/pci_gpu_link_info/pcie_gen/"
    power = gpu.findtext("gpu_power_readings/power_draw") or gpu.findtext("power_readings/power_draw")
    advice = known(gpu.findtext("gpu_recovery_action"))
    if advice is None and figures.flag("reset_required", _reset_required(gpu)):
        advice = "reset"
    raw_advice = gpu.findtext("gpu_recovery_action")
    if raw_advice is not None and raw_advice.strip().lower() == "none":
        advice = "none"
    busy = figures.number("gpu_util", gpu.findtext("utilization/gpu_util"), highest=100)
    return Readings(
        ecc_uncorrected=_sum(gpu, "ecc_errors/volatile", figures),
        ecc_corrected=_sum(gpu, "ecc_errors/volatile", figures, corrected=True),
        row_remap_pending=figures.flag(
            "remapped_row_pending", gpu.findtext("remapped_rows/remapped_row_pending")
        ),
        row_remap_failed=figures.flag(
            "remapped_row_failure", gpu.findtext("remapped_rows/remapped_row_failure")
        ),
        page_retire_pending=figures.flag(
            "pending_retirement", gpu.findtext("retired_pages/pending_retirement")
        ),
        pcie_replays=figures.count("replay_counter", gpu.findtext("pci/replay_counter")),
        link_generation=figures.count("current_link_gen", gpu.findtext(link + "current_link_gen"), highest=9),
        link_generation_max=figures.count("max_link_gen", gpu.findtext(link + "max_link_gen"), highest=9),
        link_width=figures.count(
            "current_link_width", gpu.findtext(_WIDTHS + "current_link_width"), highest=32
        ),
        link_width_max=figures.count("max_link_width", gpu.findtext(_WIDTHS + "max_link_width"), highest=32),
        temperature_c=figures.number("gpu_temp", gpu.findtext("temperature/gpu_temp"), highest=_HOTTEST_C),
        temperature_limit_c=figures.number(
            "gpu_temp_slow_threshold", gpu.findtext("temperature/gpu_temp_slow_threshold"), highest=_HOTTEST_C
        ),
        power_w=figures.number("power_draw", power, highest=10_000.0),
        memory_used_bytes=_size(gpu, "used", figures),
        busy=None if busy is None else busy / 100.0,
        recovery_action=None if advice is None else advice.lower(),
    )


def _reset_required(gpu: Element) -> str | None:
    """Drivers that advise by `gpu_recovery_action` print a sentence here instead of yes or no."""
    word = gpu.findtext("gpu_reset_status/reset_required")
    return word if word is not None and word.strip().lower() in ("yes", "no") else None


def _sum(element: Element, path: str, figures: Figures, *, corrected: bool = False) -> int | None:
    """Errors of all memories; None when no counter is given. Before v11 they stand under other names."""
    group = element.find(path)
    if group is None:
        return None
    wanted = "correctable" if corrected else "uncorrectable"
    total: int | None = None
    for counter in group.iter():
        name = counter.tag
        if name == "total":
            continue
        if "uncorrectable" in name if not corrected else wanted in name and "uncorrectable" not in name:
            value = figures.count(name, counter.text)
            if value is not None:
                total = (total or 0) + value
    old = figures.count("total", group.findtext("single_bit/total" if corrected else "double_bit/total"))
    return old if total is None else total


def _size(element: Element, name: str, figures: Figures) -> int | None:
    return figures.amount_bytes(f"fb_memory_usage.{name}", element.findtext(f"fb_memory_usage/{name}"))


def _pci_id(printed: str | None, figures: Figures) -> str | None:
    """``20B210DE`` (device, vendor) as ``10de:20b2``."""
    stripped = known(printed)
    if stripped is None:
        return None
    bare = stripped.lower().removeprefix("0x")
    if len(bare) != len("20b210de") or not bare.isalnum():
        figures.doubt("pci.pci_device_id", f"{stripped[:40]!r} is no PCI id")
        return None
    return f"{bare[4:]}:{bare[:4]}"


def _given(facts: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in facts.items() if value is not None}
