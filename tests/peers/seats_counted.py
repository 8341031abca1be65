"""A pytest plugin for the peers' own runs: says at the end how many kernels ours provisioned.

Loaded with `-p seats_counted` by pytest in the peers' environment, never by this project's suite.
"""

from jgpu.kernelprovider.provisioner import SharedGpuProvisioner


class _Counted:
    launches = 0


_pre_launch = SharedGpuProvisioner.pre_launch


async def _counted_pre_launch(self, **kwargs):
    _Counted.launches += 1
    result = await _pre_launch(self, **kwargs)
    assert self.seat is not None, result["env"].get("JGPU_PROBLEM")
    return result


SharedGpuProvisioner.pre_launch = _counted_pre_launch


def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(f"provisioned: {_Counted.launches}")
