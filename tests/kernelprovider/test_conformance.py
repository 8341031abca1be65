"""Jupyter's own conformance suite on our kernelspec, with a real broker."""

import jupyter_kernel_test
import pytest
from real_broker import real_broker

from jgpu.kernelprovider.kernelspec import Place, install

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module", autouse=True)
def spec_and_broker(tmp_path_factory):
    """The spec for a user of this module's own, and a broker for it."""
    directory = tmp_path_factory.mktemp("host")
    with pytest.MonkeyPatch.context() as patch, real_broker(directory, "--device", "null") as where:
        patch.setenv("JUPYTER_DATA_DIR", str(directory / "data"))
        patch.setenv("JUPYTER_RUNTIME_DIR", str(directory / "runtime"))
        patch.setenv("IPYTHONDIR", str(directory / "ipython"))
        patch.setenv("JGPU_ADDRESS", str(where))
        install(Place())
        yield


class TestSharedGpuKernel(jupyter_kernel_test.KernelTests):
    """The samples are those of ipykernel's own use of the suite."""

    kernel_name = "jgpu"
    language_name = "python"
    file_extension = ".py"
    code_hello_world = "print('hello, world')"
    code_stderr = "import sys; print('test', file=sys.stderr)"
    completion_samples = [{"text": "zi", "matches": {"zip"}}]  # noqa: RUF012
    complete_code_samples = ["1", "print('hello, world')", "def f(x):\n  return x*2\n\n\n"]  # noqa: RUF012
    incomplete_code_samples = ["print('''hello", "def f(x):\n  x*2"]  # noqa: RUF012
    invalid_code_samples = ["import = 7q"]  # noqa: RUF012
    code_page_something = "zip?"
    code_generate_error = "raise"
    code_execute_result = [{"code": "1+2+3", "result": "6"}]  # noqa: RUF012
    code_display_data = [  # noqa: RUF012
        {
            "code": "from IPython.display import HTML, display; display(HTML('<b>test</b>'))",
            "mime": "text/html",
        },
    ]
    code_history_pattern = "1?2*"
    supported_history_operations = ("tail", "search")
    code_inspect_sample = "zip"
    code_clear_output = "from IPython.display import clear_output; clear_output()"


class TestIopubWelcome(jupyter_kernel_test.IopubWelcomeTests):
    """The welcome message of the protocol's version 5.4 and later."""

    kernel_name = "jgpu"
    support_iopub_welcome = True
