"""A class of three at one device, as a page of one of them shows it; the same each time."""

import time

from jupyter_pages import Page, until

__all__ = ["NAME", "OPTION", "shows_the_class"]

GIB = 1 << 30
MIB = 1 << 20
OPTION = '--ServerApp.jpserver_extensions={"told_state": True, "jgpu.labserver": False}'
NAME = "lesson.ipynb"
CELLS = [
    "import os, time\nmodel = 'a net'",
    "for epoch in range(10):\n    while not os.path.exists('go'):\n        time.sleep(0.01)",
    "model",
]
#: Who had the two lanes, and for how long, in seconds before now.
TURNS = {
    "0": [(60, 3), (51, 12), (47, 3), (38, 12), (33, None), (29, 3), (20, 12), (14, 3)],
    "1": [(60, 5), (40, None), (35, 14), (31, 5), (12, 14), (9, 5)],
}


def state(kernel, at):
    """A class of three at a device, one of whose notebooks waits."""
    figures = {"iteration_seconds": 0.0231, "device_seconds": 62.1, "cells": {"1": 0.4}}
    memory = {"held": 1230 * MIB, "model": 410 * MIB, "kept": 820 * MIB, "spilled": 0}
    waits = {"waits_on": "turn", "ahead": 2, "behind": ["user2"], "waits_since": at - 3}
    lesson = {"session": 12, "path": "lesson.ipynb", "state": "waiting", "cell": "2"}
    homework = {"session": 14, "path": "homework.ipynb", "state": "spilled", "cell": ""}
    return {
        "at": at,
        "problem": "",
        "known": True,
        "may_act": True,
        "shares": True,
        "drain": "",
        "kernels": {
            kernel: lesson | waits | memory | figures,
            "other": homework | {"held": 0, "model": 0, "kept": 0, "spilled": 320 * MIB},
        },
        "share": {
            "user": "user1",
            "weight": 1.0,
            "sessions": 2,
            "most_sessions": 4,
            "used": int(1.5 * GIB),
            "memory": 4 * GIB,
            "resident": 690 * MIB,
            "most_resident": 2 * GIB,
            "budget": 3600,
            "period": 86400,
            "spent": 1400,
            "state": "within",
            "text": "",
        },
        "device": {
            "name": "the lab's GPU",
            "kind": "cuda",
            "state": "ready",
            "capacity": 80 * GIB,
            "used": 41 * GIB,
            "lanes": {
                lane: {
                    key: value
                    for key, value in {"session": now(turns, at), "members": 2}.items()
                    if value is not None
                }
                for lane, turns in TURNS.items()
            },
            "sessions": {
                "3": {"user": "user2", "own": False, "state": "running", "device_seconds": 400},
                "5": {"user": "", "own": False, "state": "running", "device_seconds": 80},
                "12": {"user": "user1", "own": True, "state": "waiting", "device_seconds": 62},
                "14": {"user": "user1", "own": True, "state": "spilled", "device_seconds": 9},
            },
        },
    }


def now(turns, at):
    """Who has a lane at a moment of the minute before `END`."""
    return next((who for since, who in reversed(turns) if at >= END - since), None)


#: The moment of the pictures.
END = time.time()


def listening(jupyter):
    """How many pages listen."""
    return jupyter.ask("jgpu/told", {}, "POST")["pages"]


def shows_the_class(browser, jupyter, path, width, height, **options):
    """A page whose second cell waits, with the panel and its strips in JupyterLab.

    `path`: below the server's address. `options`: of the browser's window.
    """
    jupyter.end_kernels()
    jupyter.write(NAME, *CELLS)
    until(lambda: listening(jupyter) == 0, "the end of the pages of before")
    page = Page(browser, jupyter, path, **options)
    page.view.set_viewport_size({"width": width, "height": height})
    page.open()
    kernel = jupyter.kernel(NAME)
    if path.startswith("lab"):
        page.view.evaluate("void jupyterapp.commands.execute('application:toggle-left-area')")
    page.run(0, 1)
    until(lambda: listening(jupyter) == 1, "a page that listens")
    for second in range(60, -1, -1):
        jupyter.ask("jgpu/told", state(kernel, END - second))
    page.says("GPU · waiting, 2 ahead · 1.5/4 GiB")
    page.mark(1, "waits for the GPU: 2 ahead")
    if path.startswith("lab"):
        page.view.evaluate("void jupyterapp.commands.execute('jgpu:show')")
        page.view.locator("#jgpu-panel").wait_for()
        page.view.wait_for_function("document.querySelectorAll('.jgpu-Strip rect').length > 8")
    return page
