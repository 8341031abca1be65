"""Unit files for hosts that run one broker for all users; `jgpu broker --systemd-unit` prints it.

The unit expects a system account `jgpu` and a group `jgpu` of those who may connect.
"""

from importlib import resources

__all__ = ["UNIT", "unit_text"]

UNIT = "jgpu-broker.service"


def unit_text(interpreter: str) -> str:
    """The unit for a broker that this interpreter runs."""
    template = resources.files(__name__).joinpath(UNIT).read_text(encoding="utf-8")
    return template.replace("@PYTHON@", interpreter)
