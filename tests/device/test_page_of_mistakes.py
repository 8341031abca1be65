"""The page of common mistakes is that of the table."""

from mistakes import PAGE, page


def test_the_page_is_made_of_the_table():
    assert PAGE.read_text() == page()
