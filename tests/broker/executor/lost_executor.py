"""An executor whose device is lost at the second upload. Run as `jgpu.broker.executor` is."""

import sys

from jgpu.broker.executor import process
from jgpu.broker.executor.devices import cpu, cuda
from jgpu.broker.flightpage import Kind


class LostDevice(cpu.CpuDevice):
    """A `cpu` device that stands for a GPU."""

    uploads = 0

    def port_at_once(self, lane, known_s):
        """Never, as on a GPU: all that is done is a job."""

    def completions(self):
        over = super().completions()
        self.uploads += sum(getattr(job, "kind", None) is Kind.UPLOAD for _, job in over)
        if self.uploads > 1:
            raise RuntimeError("CUDA error: unspecified driver failure: GPU has fallen off the bus")
        return over


if __name__ == "__main__":
    cuda.CudaDevice = LostDevice
    sys.exit(process.main(sys.argv[1:]))
