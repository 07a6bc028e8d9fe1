import pytest

from shared.errors import BadInput
from shared.vendors import table

HEADER = (
    "vendor,model,pci_ids,names,enc,dec,jpeg,shared,encode,decode,tflops_fp16,tops_int8,memory_bytes,"
    "bandwidth_bytes_per_s,source"
)


def row(**cells: str) -> list[str]:
    names = HEADER.split(",")
    return [
        HEADER,
        ",".join({"vendor": "v", "model": "m", "shared": "no", **cells}.get(name, "") for name in names),
    ]


@pytest.mark.parametrize(
    ("pci_id", "model", "engines"),
    [
        ("10de:1eb8", "T4", (1, 2, 0)),
        ("10DE:20B2", "A100", (0, 5, 1)),
        ("10de:27b8", "L4", (2, 4, 4)),
        ("10de:26b9", "L40S", (3, 3, 4)),
        ("10de:2330", "H100 SXM", (0, 7, 7)),
        ("1002:738c", "Instinct MI100", (2, 2, 2)),
        ("1002:74a1", "Instinct MI300X", (0, 4, 32)),
        ("19e5:d801", "Ascend 910A", (0, None, None)),
        ("19e5:d500", "Ascend 310P", (3, 12, 16)),
        ("8086:56c0", "Data Center GPU Flex 170", (2, 2, None)),
    ],
)
def test_common_models_are_known_by_pci_id(pci_id: str, model: str, engines: tuple[int | None, ...]) -> None:
    vendor = {"10de": "nvidia", "1002": "amd", "19e5": "huawei", "8086": "intel"}[pci_id[:4].lower()]
    found = table.find(vendor, pci_id=pci_id)
    assert found is not None
    assert found.model == model
    assert (found.enc, found.dec, found.jpeg) == engines


@pytest.mark.parametrize(
    ("vendor", "name", "model"),
    [
        ("nvidia", "Tesla T4", "T4"),
        ("nvidia", "NVIDIA L40S", "L40S"),
        ("nvidia", "NVIDIA L40", "L40"),
        ("nvidia", "NVIDIA A100-PCIE-40GB", "A100"),
        ("nvidia", "NVIDIA H100 PCIe", "H100 PCIe"),
        ("huawei", "910B3", "Ascend 910B"),
        ("huawei", "310P3", "Ascend 310P"),
        ("amd", "Arcturus GL-XL [Instinct MI100]", "Instinct MI100"),
    ],
)
def test_models_are_known_by_the_name_their_tool_prints(vendor: str, name: str, model: str) -> None:
    found = table.find(vendor, name=name)
    assert found is not None
    assert found.model == model


def test_what_is_not_in_the_table_is_not_known() -> None:
    assert table.find("nvidia", pci_id="10de:ffff", name="NVIDIA Z9000") is None
    assert table.find("amd", name="Tesla T4") is None
    assert table.find("amd") is None


def test_every_row_says_where_it_comes_from() -> None:
    assert all(model.source for model in table.models())


def test_units_that_encode_and_decode_are_counted_alike() -> None:
    assert all(model.enc == model.dec for model in table.models() if model.shared)


@pytest.mark.parametrize(
    ("lines", "column"),
    [
        (row(enc="-1"), "enc"),
        (row(dec="NaN"), "dec"),
        (row(tflops_fp16="1e999"), "tflops_fp16"),
        (row(pci_ids="1:2") + row(pci_ids="1:2")[1:], "pci_ids"),
    ],
)
def test_a_bad_cell_is_refused_by_line_and_column(lines: list[str], column: str) -> None:
    with pytest.raises(BadInput, match=rf"engines\.csv line \d .*{column}"):
        table.rows(lines)
