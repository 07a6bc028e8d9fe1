"""Settings of the simulated cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from shared.host.settings import ServiceSettings


class SimulatorSettings(ServiceSettings):
    """How large the cluster is and how fast its time runs; the defaults are the demo's."""

    model_config = SettingsConfigDict(env_prefix="MEDIAFLEET_SIMULATOR__")

    host: str = Field(default="127.0.0.1", description="Address of the HTTP API.")
    port: int = Field(default=0, ge=0, le=65535, description="Port of the HTTP API; 0 takes a free one.")
    seed: int = Field(default=1, description="What is invented (models, serials, uids) follows from it.")
    nodes: int = Field(
        default=0,
        ge=0,
        le=5000,
        description="So many alike nodes for measurements; 0 makes the three nodes of the demo.",
    )
    devices_per_node: int = Field(default=1, ge=1, le=8, description="Devices of each of those nodes.")
    kubelets: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="Device trees and kubelets with sockets; auto: for the demo's nodes, not for many.",
    )
    slots_per_engine: int = Field(
        default=4, ge=1, description="Slots of an engine that a node without kubelet shows as allocatable."
    )
    root: Path | None = Field(
        default=None,
        description="Directory of the nodes' host trees; empty: a temporary one, removed at the end.",
    )
    node_status_s: float = Field(
        default=1.0, gt=0, description="Between writes of a node's status; a real kubelet takes 10 s."
    )
    plugin_grace_s: float = Field(
        default=300.0, ge=0, description="How long a resource outlives its device plugin, as in a kubelet."
    )
    grace_scale: float = Field(
        default=0.02, ge=0, le=1, description="How much of their termination grace pods really use."
    )
    start_s: float = Field(default=0.05, ge=0, description="From a pod's admission until it runs.")
    sample_s: float = Field(default=1.0, gt=0, description="Length of the windows that workloads measure.")
    samples: bool = Field(default=True, description="Publish what workloads measure on the bus.")
