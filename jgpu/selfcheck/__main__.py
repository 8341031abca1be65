"""`python -m jgpu.selfcheck`: an executor on the `cpu` device, and this process as its client."""

import sys
import traceback

__all__ = ["main"]


def say(line: str) -> None:
    """Told at once: the next moment may be the last."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Say each step and how it ended; 1 where something was wrong."""
    try:
        say("step starting an executor")
        # Here, for they import torch.
        from jgpu.selfcheck import steps
        from jgpu.selfcheck.host import Host

        with Host() as host:
            host.wait_until_ready()
            say("step becoming cuda")
            steps.begin(host.connect)
            for step in steps.STEPS:
                say(f"step {step.__name__.replace('_', ' ')}")
                step()
    except Exception as error:
        traceback.print_exc()
        text = " ".join(str(error).split()) or "not as it should be"
        say(f"fault {type(error).__name__}: {text[:300]}")
        return 1
    say("done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
