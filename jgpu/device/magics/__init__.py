"""What `%jgpu` says to the person at the notebook: where it stands, what it holds, what it lets go.

Nothing of it is imported before somebody asks, and asking needs no torch. What is said is printed.
"""

__all__: list[str] = []
