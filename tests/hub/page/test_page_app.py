"""The page's own settings: from a file that is there and can be read, or not at all."""

import pytest

from jgpu.errors import ConfigError
from jgpu.hub.page.app import HubPage


def started(*arguments):
    page = HubPage()
    page.initialize(arguments)
    return page


def test_a_file_says_what_the_command_line_does_not(tmp_path):
    file = tmp_path / "page.py"
    file.write_text("c.HubPage.metrics_token = 'secret'\nc.HubPage.metrics_groups = 3\n")
    page = started("--config", str(file), "--HubPage.metrics_groups=4")
    assert (page.metrics_token, page.metrics_groups) == ("secret", 4)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("missing.py", None, "There is no file"),
        ("page.conf", "c.HubPage.metrics_token = 'secret'\n", "There is no file"),
        ("page.py", "c.HubPage.metrics_token = = 1\n", "SyntaxError"),
        ("page.py", "c.HubPage.metrics_groups = 1 / 0\n", "ZeroDivisionError"),
    ],
)
def test_a_page_never_starts_without_what_its_file_says(tmp_path, name, text, said):
    """A token that is not read would leave its metrics to every program of the host."""
    file = tmp_path / name
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match=said):
        started("--config", str(file))
