"""SERVER spans for ASGI applications: what makes a request one trace.

The seam is the server's own: after uvicorn has loaded the application (`Config.load`, whether it was
named, made by a factory, or is WSGI behind an adapter) the loaded application is wrapped, once and
outermost.  Nothing else of uvicorn or of a framework is touched.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from neuronscope.engine.guard import GUARD
from neuronscope.instrumentation import ClientIntegration, Kind
from neuronscope_instrumentation.asgi.server import SITE, Seam

if TYPE_CHECKING:
    from neuronscope.engine import Engine

__all__ = ["UVICORN"]


def _install(engine: Engine, module_name: str) -> Callable[[], None]:
    """Wrap what `Config.load` loads; the undo makes applications already wrapped pass through."""
    config: Any = vars(sys.modules[module_name])["Config"]
    original: Callable[..., Any] = config.load
    seam = Seam(engine)

    @functools.wraps(original)
    def load(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        GUARD.call(SITE, seam.wrap, self)
        return result

    def undo() -> None:
        seam.active = False
        if vars(config).get("load") is load:
            config.load = original

    config.load = load
    return undo


UVICORN = ClientIntegration(
    name="uvicorn",
    requires="uvicorn>=0.30",
    kind=Kind.SERVER,
    modules=("uvicorn.config",),
    install=_install,
)
