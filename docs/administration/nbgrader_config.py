# Autograding on a shared GPU. Put this into the course's nbgrader_config.py, and run
#
#   JGPU_PRIORITY=batch JUPYTER_DEFAULT_PROVISIONER_NAME=jgpu-provisioner nbgrader autograde ps1
#
# Under `fair`, batch work has a quarter of its user's weight while notebooks want the device.

import os

c = get_config()  # noqa: F821

# nbgrader's own limit counts the time that a cell waits for the GPU, so it is switched off; this
# one does not count that: seconds of computing, after which a cell is interrupted.
os.environ.setdefault("JGPU_CELL_LIMIT", "30")
c.Execute.timeout = None
c.Execute.extra_arguments = [
    "--HistoryManager.hist_file=:memory:",
    "--ext=jgpu.device.celllimit",
]
