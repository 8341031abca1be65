# Run by IPython as PYTHONSTARTUP inside a kernel that is to share the GPU, by that kernel's own
# Python, in the user's namespace: no import of jgpu, no syntax newer than Python 3.6, no name left
# behind. A kernel whose environment lacks the client says so in its first cell, so that nothing is
# ever computed on the CPU in silence. The magic %jgpu is there from the start, and loads what it
# needs when it is used. Then the startup file that this one displaced is run.


def _jgpu_startup(shell):  # noqa: ANN001, ANN202
    import os
    import sys

    purpose = "This kernel is meant to share the GPU, but "
    # of the server, which could do no more for its kernels than have this file run
    of_server = os.environ.get("JGPU_PROBLEM", "") if "JGPU_SERVER" in os.environ else ""
    remedy = "so nothing it computes will use one. To mend that, "

    def version(name: str) -> str:
        try:  # not whether it can be imported: torch finds the client by its entry point
            from importlib.metadata import version as version_of

            return version_of(name)
        except Exception:
            return ""

    def problem() -> str:
        if of_server:
            return purpose + of_server
        for name in ("jgpu", "msgspec"):
            if not version(name):
                return (
                    f"{purpose}its environment lacks the package {name}, {remedy}run `jgpu "
                    f"kernelspec install --python {sys.executable}` in a terminal and restart."
                )
        torch = version("torch").split(".")
        try:
            old = (int(torch[0]), int(torch[1])) < (2, 5)
        except (ValueError, IndexError):  # without torch, `import torch` says what is missing
            return ""
        if old:  # newer ones load the client, which knows the limits itself
            return f"{purpose}PyTorch {torch[0]}.{torch[1]} is too old for it, {remedy}update it."
        return ""

    def tell(*_: object) -> None:
        shell.events.unregister("pre_run_cell", tell)
        print(text, file=sys.stderr)  # noqa: T201

    def command():  # noqa: ANN202
        from jgpu.device.magics import command

        return command.run

    def jgpu(line):  # noqa: ANN001, ANN202
        try:
            run = None if text else command()
        except ImportError:
            run = None
        if run is None:
            print(text or "This environment's jgpu is too old for %jgpu; update it.")  # noqa: T201
        else:
            run(line)

    def explain():  # noqa: ANN202
        return command().__doc__

    outer = os.environ.pop("JGPU_OUTER_PYTHONSTARTUP", "")
    os.environ.pop("PYTHONSTARTUP", None)
    if outer:
        os.environ["PYTHONSTARTUP"] = outer
    text = problem() if shell is not None else ""
    if text:
        shell.events.register("pre_run_cell", tell)
    if shell is not None:
        jgpu.getdoc = explain  # type: ignore[attr-defined] # where IPython looks first
        shell.register_magic_function(jgpu, "line", "jgpu")
    return outer


_jgpu_outer = _jgpu_startup(globals().get("get_ipython", lambda: None)())
del _jgpu_startup
if _jgpu_outer:
    with open(_jgpu_outer, "rb") as _jgpu_file:
        _jgpu_code = compile(_jgpu_file.read(), _jgpu_outer, "exec")
    del _jgpu_file, _jgpu_outer
    exec(_jgpu_code)
    del _jgpu_code
else:
    del _jgpu_outer
