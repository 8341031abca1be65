# Read by the Jupyter server of a hub's user (JUPYTER_CONFIG_PATH leads here), by that server's own
# Python: no import of jgpu, no syntax newer than Python 3.6. Its kernels share the GPU. Where its
# environment lacks jgpu they start as ever, compute without a GPU, and say so in their first cell.


def _jgpu_route(c, here):  # noqa: ANN001, ANN202
    import os
    import sys

    try:
        from importlib.metadata import version

        version("jgpu")
    except Exception:
        if os.environ.get("PYTHONSTARTUP"):
            os.environ["JGPU_OUTER_PYTHONSTARTUP"] = os.environ["PYTHONSTARTUP"]
        os.environ["PYTHONSTARTUP"] = os.path.join(here, "startup.py")
        os.environ["JGPU_SERVER"] = "lacking"
        os.environ["JGPU_TICKET"] = "none"
        os.environ["JGPU_PROBLEM"] = (
            "the environment of your Jupyter server lacks the package jgpu, so nothing it computes "
            f"will use one. To mend that, run `{sys.executable} -m pip install jgpu`, or ask your "
            "administrator for that, and restart the server."
        )
    else:
        c.KernelProvisionerFactory.default_provisioner_name = "jgpu-provisioner"


_jgpu_route(c, __import__("os").path.dirname(__file__))  # type: ignore[name-defined] # noqa: F821
del _jgpu_route
