"""One program of many products of large matrices, which takes a minute, or so.

    python long_program.py SIZE COUNT

Says "begun" once the matrix is on the device and the products are recorded next, and at last
whether their sum is finite; where it is interrupted it says so, and that the device goes on.
"""

import sys

import torch


def main(size, count):
    """All products in one program: nothing is read in between."""
    matrix = torch.full((int(size), int(size)), 1 / int(size), device="cuda")
    assert matrix[0].sum().item() > 0
    sys.stdout.write("begun\n")
    sys.stdout.flush()
    product = matrix
    try:
        for _ in range(int(count)):
            product = product @ matrix
        said = f"{product.sum().isfinite().item()}"
    except KeyboardInterrupt:
        said = f"interrupted {matrix[0].gt(0).sum().item()}"
    sys.stdout.write(said + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
