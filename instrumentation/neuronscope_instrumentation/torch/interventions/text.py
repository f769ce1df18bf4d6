"""Text in: what a tokenizer of transformers makes of prompts and chats, as a model takes it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, cast

from torch import nn


def is_text(value: object) -> bool:
    """A prompt, several, a chat (a list of messages), or several chats."""
    if isinstance(value, str):
        return True
    if not isinstance(value, list) or not value:
        return False
    first = cast("list[object]", value)[0]
    return isinstance(first, str | Mapping) or is_text(first)


def encode(tokenizer: Any, model: nn.Module, text: Any, *, generates: bool) -> dict[str, Any]:
    """The model's arguments for a text: ids, mask and, where it takes them, positions.

    Several prompts are padded on the left for models that generate, and positions count real tokens only, so
    that each prompt gets what it would get alone.  A chat goes through the tokenizer's template.
    """
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    config: Any = getattr(model, "config", None)
    decoder = hasattr(model, "generate") and not getattr(config, "is_encoder_decoder", False)
    options: dict[str, Any] = {"return_tensors": "pt", "padding": True}
    side = {"padding_side": "left"} if decoder else {}
    if _is_chat(text):
        made = tokenizer.apply_chat_template(
            text,
            tokenize=True,
            return_dict=True,
            add_generation_prompt=True,
            tokenizer_kwargs=side,
            **options,
        )
    else:
        made = tokenizer([text] if isinstance(text, str) else text, **options, **side)
    device = next((parameter.device for parameter in model.parameters()), None)
    taken = _parameters(model)
    arguments = {
        name: value.to(device)
        for name, value in made.items()
        if taken is None or name in taken or name == "input_ids"
    }
    mask = arguments.get("attention_mask")
    if (
        decoder
        and not generates
        and mask is not None
        and not bool(mask.all())
        and (taken is None or "position_ids" in taken)
    ):
        arguments["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
    return arguments


def _is_chat(text: Any) -> bool:
    return not isinstance(text, str) and not isinstance(cast("Sequence[object]", text)[0], str)


def _parameters(model: nn.Module) -> Mapping[str, inspect.Parameter] | None:
    """The parameters of the model's forward by name; None if it takes any."""
    parameters = inspect.signature(model.forward).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return None if takes_any and "input_ids" not in parameters else parameters
