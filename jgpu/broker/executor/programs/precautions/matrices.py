"""Matrices that LAPACK does not take: it writes past its workspace, or ends the process."""

from typing import Any

from jgpu.broker.executor.programs.precautions.language import Attempt, precaution

__all__: list[str] = []


@precaution("linalg_eigvals", "_linalg_eigvals", waits=True, on=("cpu",))
def _eigenvalues(attempt: Attempt) -> Any:
    """As `linalg_eig` does, which looks for itself."""
    if not attempt["self"].isfinite().all():
        raise RuntimeError(f"{attempt.base.lstrip('_')}: the matrix must not hold infs or NaNs.")
    return attempt.go()
