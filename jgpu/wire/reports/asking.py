"""The broker's report, asked for once."""

from jgpu.wire import asking
from jgpu.wire.address import Address
from jgpu.wire.messages import AskStatus, StatusIs
from jgpu.wire.reports.report import Report, decode

__all__ = ["ask_json", "ask_report"]


def ask_json(address: Address, timeout_s: float = 5.0) -> bytes:
    """The report as it came: a newer broker may say more than this program knows."""
    return asking.ask_for(address, AskStatus(), StatusIs, timeout_s).json


def ask_report(address: Address, timeout_s: float = 5.0) -> Report:
    """The report; raises as `jgpu.wire.asking.ask` does."""
    return decode(ask_json(address, timeout_s), address)
