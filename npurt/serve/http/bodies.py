"""The schemas of all request bodies, by path: the fields and their types.

A rule that concerns several fields is checked by the handler that reads these fields.
"""

from collections.abc import Mapping

from npurt.serve.http import limits
from npurt.serve.http.schema import (
    ANY,
    FLAG,
    NUMBER,
    OBJECT,
    TEXT,
    Schema,
    array,
    either,
    enum,
    fields,
    integer,
    mapping,
    text,
)

Properties = Mapping[str, Schema]

# --- Sampling and length ------------------------------------------------------------------------

NUMBERS = (
    "temperature", "top_p", "min_p", "typical_p", "top_n_sigma", "xtc_probability",
    "xtc_threshold", "dry_multiplier", "dry_base", "repeat_penalty", "frequency_penalty",
    "presence_penalty",
)  # fmt: skip
INTEGERS = ("top_k", "repeat_last_n", "dry_allowed_length", "dry_penalty_last_n")
STOP = either(text(limits.STOP_TEXT), array(text(limits.STOP_TEXT), limits.STOPS))
STOPS = either(  # strings and token ids
    text(limits.STOP_TEXT), array(either(text(limits.STOP_TEXT), integer(0)), limits.STOPS)
)
LENGTH = integer(-1)  # tokens; -1 is no limit
ADAPTERS = array(fields({"id": integer(0), "scale": NUMBER}, "id", "scale"), limits.ADAPTERS)
TEXTS_WANTED: Properties = {
    **dict.fromkeys(NUMBERS, NUMBER),
    **dict.fromkeys(INTEGERS, integer(-1)),
    "seed": integer(),
    "dry_sequence_breakers": array(ANY, limits.STOPS),
    "logit_bias": either(OBJECT, array(ANY, limits.BIASES)),
    "stop": STOPS,
    "n": integer(1, limits.CHOICES),
    "ignore_eos": FLAG,
    "min_tokens": integer(0),
    "stop_token_ids": array(integer(0), limits.STOPS),
    "lora": ADAPTERS,
    "t_max_predict_ms": integer(-1),
}
SCHEMA = either(OBJECT, TEXT)  # a JSON schema
CONSTRAINTS: Properties = {  # by their names in vLLM's structured_outputs
    "json": SCHEMA, "regex": TEXT, "choice": array(TEXT), "grammar": TEXT, "json_object": FLAG
}  # fmt: skip
FORMATS: Properties = {
    "response_format": fields({"type": TEXT}), "grammar": TEXT, "json_schema": SCHEMA,
    **{f"guided_{name}": CONSTRAINTS[name] for name in ("json", "regex", "choice", "grammar")},
    "structured_outputs": fields(CONSTRAINTS),
}  # fmt: skip
STREAM: Properties = {"stream": FLAG, "stream_options": fields({"include_usage": FLAG})}

# --- Messages and tools -------------------------------------------------------------------------

MESSAGE: Properties = {"role": TEXT, "content": either(TEXT, array(ANY, limits.MESSAGES))}
MESSAGES = array(fields(MESSAGE, "role"), limits.MESSAGES, 1)
FUNCTION = fields({"name": TEXT, "parameters": OBJECT, "strict": FLAG})


def flat_tools(schema: str) -> Schema:
    """Return the schema of tools without the inner object "function".

    Args:
        schema: The field with the schema of the parameters.
    """
    texts = dict.fromkeys(("type", "name", "description"), TEXT)
    return array(fields({**texts, schema: OBJECT, "strict": FLAG}), limits.TOOLS)


CHOICE = fields({"name": TEXT, "function": fields({"name": TEXT})})
TOOLS: Properties = {
    "tools": array(fields({"type": TEXT, "function": FUNCTION}), limits.TOOLS),
    "tool_choice": either(enum("auto", "none", "required"), CHOICE),
    "parallel_tool_calls": FLAG,
}
VARIABLES: Properties = {
    "chat_template_kwargs": OBJECT,
    **dict.fromkeys(("enable_thinking", "add_generation_prompt", "continue_final_message"), FLAG),
}
IDS = array(integer(), limits.VALUES)
PROMPTS = either(TEXT, array(either(TEXT, integer(), IDS), limits.VALUES))  # strings or token ids

# --- OpenAI -------------------------------------------------------------------------------------

CHAT: Properties = {
    "model": TEXT,
    "messages": MESSAGES,
    **dict.fromkeys(("max_completion_tokens", "max_tokens", "n_predict"), LENGTH),
    **TEXTS_WANTED, **FORMATS, **STREAM, **TOOLS, **VARIABLES,
    "logprobs": FLAG,
    "top_logprobs": integer(0, limits.TOP_LOGPROBS),
    "reasoning_format": TEXT,
}  # fmt: skip
COMPLETIONS: Properties = {
    "model": TEXT,
    "prompt": PROMPTS,
    "suffix": TEXT,
    **dict.fromkeys(("max_tokens", "n_predict"), LENGTH),
    **TEXTS_WANTED, **FORMATS, **STREAM,
    "echo": FLAG,
    "best_of": integer(1, limits.CHOICES),
    "logprobs": either(FLAG, integer(0, limits.TOP_LOGPROBS)),
}  # fmt: skip
EMBEDDINGS: Properties = {
    "model": TEXT,
    "input": PROMPTS,
    "encoding_format": enum("float", "base64"),
    "dimensions": integer(1),
}
DOCUMENTS = array(either(TEXT, fields({"text": TEXT}, "text")), limits.TEXTS)
RERANK = fields({
    "model": TEXT,
    "query": TEXT,
    **dict.fromkeys(("documents", "texts"), DOCUMENTS),
    "top_n": integer(0),
    **dict.fromkeys(("return_documents", "return_text"), FLAG),
}, "query")  # fmt: skip
PARTS = either(
    TEXT, array(fields({"type": TEXT, "text": TEXT, "refusal": TEXT}), limits.MESSAGES)
)  # fmt: skip
ITEM = fields({
    **dict.fromkeys(("type", "role", "name", "arguments", "call_id"), TEXT),
    "content": PARTS, "output": PARTS,
})  # fmt: skip
RESPONSES: Properties = {
    "model": TEXT,
    "input": either(TEXT, array(ITEM, limits.MESSAGES, 1)),
    "instructions": TEXT,
    "max_output_tokens": LENGTH,
    **TEXTS_WANTED,
    **FORMATS,
    "stream": FLAG,
    "text": fields({"format": fields({"type": TEXT})}),
    "tools": flat_tools("parameters"),
    "tool_choice": TOOLS["tool_choice"],
    "parallel_tool_calls": FLAG,
    "metadata": mapping(limits.METADATA),
    "previous_response_id": ANY,  # refused by the handler
    "conversation": ANY,  # refused by the handler
}

# --- Anthropic ----------------------------------------------------------------------------------

TEXT_BLOCKS = either(TEXT, array(fields({"type": TEXT, "text": TEXT}), limits.MESSAGES))
BLOCK = fields({
    **dict.fromkeys(("type", "text", "thinking", "name", "id", "tool_use_id"), TEXT),
    "input": OBJECT, "content": TEXT_BLOCKS,
})  # fmt: skip
BLOCKS = either(TEXT, array(BLOCK, limits.MESSAGES))
COUNT: Properties = {
    "model": TEXT,
    "messages": array(fields({"role": TEXT, "content": BLOCKS}, "role"), limits.MESSAGES, 1),
    "system": TEXT_BLOCKS,
    "tools": flat_tools("input_schema"),
    "tool_choice": fields({"type": TEXT, "name": TEXT, "disable_parallel_tool_use": FLAG}),
    "thinking": fields({"type": TEXT}),
}
ANTHROPIC: Properties = {
    **COUNT, **TEXTS_WANTED, **FORMATS, "max_tokens": LENGTH, "stop_sequences": STOP, "stream": FLAG
}  # fmt: skip

# --- llama.cpp ----------------------------------------------------------------------------------

OBJECT_PROMPT = fields({"prompt_string": TEXT, "multimodal_data": array(ANY)}, "prompt_string")
# A string, token ids, an object, or a list of these; a list may mix strings and token ids.
LLAMA_PROMPTS = either(
    TEXT,
    OBJECT_PROMPT,
    array(either(TEXT, integer(), array(either(TEXT, integer())), OBJECT_PROMPT)),
)
COMPLETION: Properties = {
    "model": TEXT,
    **dict.fromkeys(("n_predict", "max_tokens"), LENGTH),
    **TEXTS_WANTED, **FORMATS,
    "response_fields": array(TEXT, limits.STOPS),
    "n_probs": integer(0, limits.TOP_LOGPROBS),
    "stream": FLAG,
    **dict.fromkeys(("return_progress", "return_tokens", "timings_per_token"), FLAG),
    "n_cmpl": integer(1, limits.CHOICES),
}  # fmt: skip
INFILL: Properties = {
    **COMPLETION,
    **dict.fromkeys(("prompt", "input_prefix", "input_suffix"), TEXT),
    "input_extra": array(fields({"text": TEXT, "filename": TEXT}, "text"), limits.MESSAGES),
}

# --- Ollama -------------------------------------------------------------------------------------

OLLAMA: Properties = {
    "model": TEXT,
    "options": fields({"num_predict": LENGTH, **TEXTS_WANTED}),
    "format": either(enum("json", ""), OBJECT),
    "think": either(FLAG, TEXT),
    "stream": FLAG,
}
IMAGES: Properties = {"images": array(ANY, limits.MESSAGES)}  # handlers refuse a non-empty list


def _counted(properties: Properties) -> Properties:
    """Return the fields of a request whose tokens are counted: its answer is never a stream."""
    return {name: schema for name, schema in properties.items() if name not in STREAM}


# --- All ----------------------------------------------------------------------------------------

BODIES: Mapping[str, Schema] = {  # by path; OpenAI's paths work without /v1 as well
    "/v1/chat/completions": fields(CHAT, "messages"),
    "/v1/completions": fields(COMPLETIONS, "prompt"),
    "/v1/responses": fields(RESPONSES, "input"),
    "/v1/embeddings": fields(EMBEDDINGS, "input"),
    "/v1/chat/completions/input_tokens": fields(_counted(CHAT), "messages"),
    "/v1/responses/input_tokens": fields(_counted(RESPONSES), "input"),
    "/lora-adapters": ADAPTERS,
    **dict.fromkeys(("/models/load", "/models/unload"), fields({"model": TEXT})),
    **dict.fromkeys(("/v1/rerank", "/v1/reranking", "/v2/rerank", "/rerank", "/reranking"), RERANK),
    "/embedding": fields({
        "model": TEXT, "content": PROMPTS, "input": PROMPTS, "embd_normalize": integer(-1, 100),
    }),
    "/completion": fields({"prompt": LLAMA_PROMPTS, **COMPLETION}, "prompt"),
    "/infill": fields(INFILL),
    "/tokenize": fields({
        "model": TEXT, "content": TEXT,
        **dict.fromkeys(("add_special", "parse_special", "with_pieces"), FLAG),
    }),
    "/detokenize": fields({"model": TEXT, "tokens": array(integer(), limits.VALUES)}),
    "/apply-template": fields(
        {"model": TEXT, "messages": MESSAGES, **TOOLS, **VARIABLES}, "messages"
    ),
    "/v1/messages": fields(ANTHROPIC, "messages"),
    "/v1/messages/count_tokens": fields(COUNT, "messages"),
    "/api/chat": fields({
        "messages": array(fields({**MESSAGE, **IMAGES}, "role"), limits.MESSAGES),
        **OLLAMA, **TOOLS, "truncate": FLAG,
    }),
    "/api/generate": fields({
        **OLLAMA, **IMAGES, **dict.fromkeys(("prompt", "suffix", "system"), TEXT), "raw": FLAG
    }),
    "/api/show": fields({"model": TEXT}),
    "/api/embed": fields({
        "model": TEXT, "input": PROMPTS, "truncate": FLAG, "dimensions": integer(0)
    }),
    "/api/embeddings": fields({"model": TEXT, "prompt": TEXT}),
}  # fmt: skip
