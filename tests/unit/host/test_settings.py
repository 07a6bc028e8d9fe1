from pathlib import Path

import pytest
from pydantic import Field
from pydantic_settings import SettingsConfigDict

from shared.errors import BadInput
from shared.host.settings import ServiceSettings, SharedSettings, describe, load, read_section


class OwnSettings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="MEDIAFLEET_EXAMPLE__")

    period_s: float = Field(default=10.0, gt=0, description="How often.")


def settings_file(path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = path / "settings.yaml"
    file.write_text(text)
    monkeypatch.setenv("MEDIAFLEET_SETTINGS_FILE", str(file))


def test_the_environment_wins_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "example: {period_s: 5}\nshared: {node_name: from-file, log_level: debug}"
    settings_file(tmp_path, text, monkeypatch)
    assert load(OwnSettings).period_s == 5
    monkeypatch.setenv("MEDIAFLEET_EXAMPLE__PERIOD_S", "2")
    monkeypatch.setenv("MEDIAFLEET_NODE_NAME", "from-env")
    assert load(OwnSettings).period_s == 2
    shared = load(SharedSettings)
    assert (shared.node_name, shared.log_level) == ("from-env", "debug")


def test_a_wrong_value_names_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEDIAFLEET_EXAMPLE__PERIOD_S", "-1")
    with pytest.raises(BadInput, match="MEDIAFLEET_EXAMPLE__PERIOD_S"):
        load(OwnSettings)


def test_an_unknown_field_in_the_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings_file(tmp_path, "example: {perod_s: 5}", monkeypatch)
    with pytest.raises(BadInput, match="PEROD_S"):
        load(OwnSettings)


@pytest.mark.parametrize(
    ("text", "problem"),
    [("example: 3", "is no mapping"), ("- 1", "is no mapping"), ("a: [", "is no YAML")],
)
def test_a_broken_file_says_what_is_wrong(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    with pytest.raises(BadInput, match=problem):
        read_section(file, "example")


def test_a_missing_file_is_bad_input_and_a_missing_section_is_empty(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read"):
        read_section(tmp_path / "none.yaml", "example")
    file = tmp_path / "settings.yaml"
    file.write_text("")
    assert read_section(file, "example") == {}


def test_every_setting_is_described() -> None:
    assert describe(OwnSettings) == [("MEDIAFLEET_EXAMPLE__PERIOD_S", "10.0", "How often.")]
    assert all(text for _, _, text in describe(SharedSettings))
