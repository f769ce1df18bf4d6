"""SERVER spans for ASGI applications: what makes a request one trace.

The seam is the server's own: after uvicorn has loaded the application (`Config.load`, whether it was
named, made by a factory, or is WSGI behind an adapter) the loaded application is wrapped, once and
outermost.  A second, smaller one: FastAPI's own telemetry is kept from tracing the same request.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from neuronscope.engine.guard import GUARD
from neuronscope.instrumentation import ClientIntegration, Kind
from neuronscope_instrumentation.asgi.others import quiet_fastapi
from neuronscope_instrumentation.asgi.server import SITE, Seam, traced_into_own_pipeline

if TYPE_CHECKING:
    from neuronscope.engine import Engine

__all__ = ["UVICORN"]
FASTAPI: Final = "fastapi.telemetry._asgi"


def _install(engine: Engine, module_name: str) -> Callable[[], None]:
    """Install what belongs to the module just imported, and return the undo."""
    members: dict[str, Any] = vars(sys.modules[module_name])
    if module_name == FASTAPI:
        return quiet_fastapi(members["NativeTelemetry"], traced_into_own_pipeline)
    return _wrap_what_is_loaded(engine, members["Config"])


def _wrap_what_is_loaded(engine: Engine, config: Any) -> Callable[[], None]:
    """Wrap what `Config.load` loads; the undo makes applications already wrapped pass through."""
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
    modules=("uvicorn.config", FASTAPI),
    install=_install,
)
