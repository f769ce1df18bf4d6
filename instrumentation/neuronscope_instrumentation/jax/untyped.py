"""What JAX leaves without types, with types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

import jax
from jax import ad_checkpoint, lax
from jax.extend import core

_jax: Final = cast(Any, jax)
RuntimeFailure: Final = cast("type[RuntimeError]", _jax.errors.JaxRuntimeError)
make_user_context: Final = cast("Callable[[object], Any]", _jax.make_user_context)
effects_barrier: Final = cast("Callable[[], None]", _jax.effects_barrier)
read_config: Final = cast("Callable[[str], Any]", _jax.config.read)
barrier: Final = cast("Callable[[jax.Array], jax.Array]", cast(Any, lax).optimization_barrier)
programs_in: Final = cast("Callable[[dict[str, Any]], list[Any]]", cast(Any, core).jaxprs_in_params)
checkpoint_name: Final = cast("Callable[[Any, str], Any]", cast(Any, ad_checkpoint).checkpoint_name)
jit: Final = cast("Callable[[Callable[..., Any]], Callable[..., Any]]", _jax.jit)
_tracer: Final = _jax.core.Tracer


def is_traced(value: object) -> bool:
    """Does the value stand for one that a transformation, or compiled code, will have?"""
    return isinstance(value, _tracer)
