"""llama.cpp's interface: /tokenize, /detokenize, /apply-template, /props, /slots, /lora-adapters.

Source of the fields: llama.cpp tools/server/README.md.
"""

from typing import Any

from npurt.serve.front import options
from npurt.serve.front.front import Front, SamplingParams
from npurt.serve.front.generation import Choice
from npurt.serve.front.offer import ModelPool
from npurt.serve.http import limits
from npurt.serve.http.endpoint import Answer, HttpRequest
from npurt.serve.http.errors import HttpError
from npurt.serve.http.fields import Fields
from npurt.serve.interfaces.llama_cpp import settings
from npurt.serve.interfaces.openai_chat import continued, messages, template_variables
from npurt.serve.interfaces.openai_common import known
from npurt.serve.tools.wanted import tools_of
from npurt.version import __version__


async def tokenize(front: Front, request: HttpRequest) -> Answer:
    """Return the token ids of a text."""
    fields, model = request.fields, front.model
    content = fields.text("content", "") or ""
    add = None if fields.flag("add_special") else False
    special = fields.flag("parse_special", True)
    pieces = fields.flag("with_pieces")

    def encoded() -> list[Any]:
        ids = model.encode(content, add_bos=add, special=special)
        if not pieces:
            return ids
        return [{"id": i, "piece": _piece(model.tokenizer.piece(i))} for i in ids]

    return {"tokens": await request.in_thread(encoded)}


def _piece(data: bytes) -> str | list[int]:
    """Return the text of a token, or its bytes if they are not valid UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)


async def detokenize(front: Front, request: HttpRequest) -> Answer:
    """Return the text of token ids."""

    def decoded() -> str:
        ids = [int(i) for i in request.fields.items("tokens")]
        return front.model.tokenizer.decode(known(front.model, ids, "tokens"))

    return {"content": await request.in_thread(decoded)}


async def apply_template(front: Front, request: HttpRequest) -> Answer:
    """Return the prompt that the chat template renders from messages."""
    fields: Fields = request.fields
    tools = tools_of(fields)
    given, variables = messages(fields), template_variables(fields)
    given, before = continued(fields, given)
    prompted = bool(before) or fields.flag("add_generation_prompt", True)
    prompt = await request.in_thread(
        lambda: front.model.prompt(
            given, tools=tools.listed, variables=variables, add_generation_prompt=prompted
        )
    )
    return {"prompt": prompt + before}


async def props(offers: ModelPool, request: HttpRequest) -> Answer:
    """Describe the server, or the model that the request names; file names have no folder."""
    found = offers.offers()
    if len(found) > 1 and not request.fields.has("model"):
        return {"role": "router", "models": [offer.model.name for offer in found],
                "build_info": f"npurt {__version__}"}  # fmt: skip
    async with offers.using(request) as front:
        return _props(front)


def _props(front: Front) -> dict[str, Any]:
    ready, model = front.ready(), front.model
    usual: dict[str, Any] = {"n_ctx": ready.n_ctx, "params": settings(front, SamplingParams())}
    return {
        "default_generation_settings": usual,
        "total_slots": ready.sequences,
        "model_path": model.path.name,
        "model_alias": model.name,
        "chat_template": model.source,
        "bos_token": model.text_of(model.tokenizer.bos),
        "eos_token": model.text_of(model.tokenizer.eos),
        "modalities": {"vision": False, "audio": False},
        "build_info": f"npurt {__version__}",
    }


async def slots(offers: ModelPool, request: HttpRequest) -> Answer:
    """List the sequences that may run at the same time, and the progress of those that run.

    The list contains no prompts.  With the query ``fail_on_no_slot=1``, the status is 503 if all
    slots are in use.
    """
    async with offers.using(request) as front:
        ready, running = front.ready(), front.running[: front.ready().sequences]
        if request.fields.text("fail_on_no_slot") == "1" and len(running) == ready.sequences:
            raise HttpError(503, "no slot is available", remedy="ask again later",
                            code="no_slot")  # fmt: skip
        filled = [*running, *[None] * (ready.sequences - len(running))]
        return [_slot(number, choice, ready.n_ctx) for number, choice in enumerate(filled)]


def _slot(number: int, choice: Choice | None, n_ctx: int) -> dict[str, Any]:
    slot: dict[str, Any] = {
        "id": number,
        "n_ctx": n_ctx,
        "speculative": False,
        "is_processing": choice is not None,
    }
    if choice is None:
        return slot
    left = -1 if choice.limit is None else choice.limit - choice.count
    sampling = {name: value for name, value in choice.sampling.items() if name != "logit_bias"}
    return slot | {
        "id_task": choice.task,
        "n_prompt_tokens": choice.prompt_tokens,
        "n_prompt_tokens_processed": choice.read,
        "n_prompt_tokens_cache": choice.cached,
        "params": sampling | {"n_predict": -1 if choice.limit is None else choice.limit},
        "next_token": {
            "has_next_token": True,
            "has_new_line": choice.new_line,
            "n_remain": left,
            "n_decoded": choice.count,
        },
    }


async def set_adapters(front: Front, request: HttpRequest) -> Answer:
    """Set the scales of the LoRA adapters for requests without the field lora."""
    front.set_scales(options.scales(request.fields, limits.LIST) or {})
    return {"success": True}


async def lora_adapters(offers: ModelPool, request: HttpRequest) -> Answer:
    """List the LoRA adapters of the model."""
    async with offers.using(request) as front:
        return [
            {"id": number, "path": name, "scale": scale}
            for number, (name, scale) in enumerate(front.settings.lora)
        ]
