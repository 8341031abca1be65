"""What there is, and whether the device's calls do what they say: the ground of all others."""

import time
from typing import Any, Final

from jgpu.broker.gputroubles import explained
from jgpu.errors import JgpuError
from jgpu.gpucheck.stand import SkipCase, Stand, gpu_bytes

__all__ = ["calls", "discovery", "second_gpu"]

_READY_S: Final = 25.0
_EXCLUSIVE: Final = {1: "Exclusive Thread", 2: "Prohibited", 3: "Exclusive Process"}
_ALLOCATOR: Final = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}


def discovery(stand: Stand) -> None:
    """The driver's and torch's words on one GPU agree, and an executor gets ready on it."""
    if not stand.on_host:
        _driver_and_torch(stand)
    began = time.monotonic()
    try:
        with stand.broker(lanes=4) as place:
            ready_s, device = time.monotonic() - began, place.device()
    except JgpuError as error:
        stand.check("an executor is ready", holds=False, text=error)
        return
    stand.same("an executor is ready", device.state, "ready")
    stand.same("its kind", device.kind, "cuda")
    stand.figure("until it was ready", ready_s, "s", at_most=_READY_S)
    if not stand.on_host:
        _automatic(stand)


def _driver_and_torch(stand: Stand) -> None:
    said = _driver()
    for name, value in said.items():
        stand.note(f"driver: {name}: {value}")
    text = f"its compute mode is {said['mode']}: set it by `nvidia-smi -c DEFAULT`"
    stand.check("several processes may use it", said["mode"] == "Default", text)
    found: dict[str, Any] = stand.run("facts", **_ALLOCATOR)
    for name, value in found.items():
        stand.note(f"torch: {name}: {value}")
    stand.check(
        "torch computes on it", found["computes"] == 3.0, explained([str(found["computes"])])
    )
    major, minor = found["capability"]
    code = {word.removeprefix("sm_").rstrip("af") for word in found["code for"]}
    text = (
        f"torch has code for {sorted(code)} and runs on {major}.{minor} by compiling or not at all"
    )
    stand.check("torch has code for it", any(word.startswith(str(major)) for word in code), text)
    uuid, seen = str(said["uuid"]), str(found["uuid"])
    if not said["instances"]:
        stand.check("one and the same GPU", seen in uuid, f"torch sees {seen}, the driver {uuid}")
    stand.check("waits of the host are noticed", found["waits are seen"] is True)


def _driver() -> dict[str, Any]:
    """What the driver says of the first GPU that CUDA shows."""
    import pynvml as nvml

    from jgpu.broker.control.executors.gpus import gpu_uuid

    nvml.nvmlInit()
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(gpu_uuid(0))
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        found = {
            "driver": nvml.nvmlSystemGetDriverVersion(),
            "name": nvml.nvmlDeviceGetName(handle),
            "uuid": nvml.nvmlDeviceGetUUID(handle),
            "memory, used": (memory.total, memory.used),
            "instances": gpu_uuid(0).startswith("MIG-"),
        }
        for name, ask in (
            ("mode", nvml.nvmlDeviceGetComputeMode),
            ("index", nvml.nvmlDeviceGetIndex),
            ("utilisation", lambda each: str(nvml.nvmlDeviceGetUtilizationRates(each))),
            ("temperature", lambda each: nvml.nvmlDeviceGetTemperature(each, 0)),
            ("persistence", nvml.nvmlDeviceGetPersistenceMode),
        ):
            try:
                found[name] = ask(handle)
            except nvml.NVMLError as error:  # an instance, or an old GPU, has not all of them
                found[name] = f"{error}"
        found["mode"] = _EXCLUSIVE.get(found["mode"], "Default")
        return found
    finally:
        nvml.nvmlShutdown()


def _automatic(stand: Stand) -> None:
    from jgpu.bench.broker import Bench

    settings = {"memory": 1 << 30, "claims_gpu": False}
    with Bench(device="auto", threads=1, lanes=1, settings=settings) as bench:
        device = bench.status().devices[0]
    stand.same("auto takes the GPU", (device.kind, device.note), ("cuda", ""))


def calls(stand: Stand) -> None:
    """Streams, events, copies, pinned memory, limits, peaks and generators, one by one."""
    for name, holds in stand.run("calls", **_ALLOCATOR).items():
        stand.check(name, holds is True, holds)
    if not stand.on_host:
        free, total = stand.run("facts", **_ALLOCATOR)["free and total"]
        part = total / gpu_bytes()
        stand.check("driver and CUDA count the same memory", 0.9 < part <= 1.0, f"{part:.3f}")
        stand.figure("free for this process", free / 2**30, "GiB")


def second_gpu(stand: Stand) -> None:
    """An executor of the second GPU sees that one alone, and computes on it."""
    from jgpu.broker.control.executors.gpus import gpu_uuid
    from jgpu.errors import ConfigError

    try:
        second = gpu_uuid(1)
    except ConfigError as error:
        raise SkipCase(f"There is one GPU. ({error})") from None
    if stand.on_host or second.startswith("GPU-number-"):
        raise SkipCase("There is one GPU.")
    right = stand.run("identity", "dense", stand.scale, 3, CUDA_VISIBLE_DEVICES=second)
    with stand.broker(gpu=1) as place:
        found = place.seat("identity", "dense", stand.scale, 3)
    for name, each in right.items():
        stand.same(name, found[name], each)
