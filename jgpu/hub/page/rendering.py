"""Templates, all with escaping on, and what they may call."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from jgpu import __version__
from jgpu.hub.page import words
from jgpu.wire import sizes

__all__ = ["STATIC", "Renderer"]

_HERE: Final = Path(__file__).parent
STATIC: Final = _HERE / "static"


class Renderer:
    """The page's templates below one prefix."""

    def __init__(self, prefix: str, hub_prefix: str) -> None:
        self._templates = Environment(
            loader=FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            auto_reload=False,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= {
            "duration": sizes.duration,
            "iso": words.iso,
            "moment": words.moment,
            "second": words.second,
            "size": sizes.short_size,
        }
        self._templates.globals |= {
            "hub": hub_prefix,
            "prefix": prefix,
            "setting": words.setting,
            "version": __version__,
            "zone": time.strftime("%Z"),
        }

    def render(self, template: str, **values: Any) -> str:
        """The text of a template."""
        return self._templates.get_template(template).render(**values)

    def parts(self, template: str, names: tuple[str, ...], **values: Any) -> Mapping[str, str]:
        """The text of each of a template's macros that has one of these names."""
        module = self._templates.get_template(template).make_module(values)
        return {name: str(getattr(module, name)()) for name in names}
