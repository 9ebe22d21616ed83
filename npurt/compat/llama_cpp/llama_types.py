"""Names of the module llama_cpp.llama_types: the types of requests and results in OpenAI's API.

The classes describe dicts for type checkers; the annotations of npurt's methods are wider.
"""

from typing import Any, Literal, NotRequired, TypedDict

JsonType = None | int | str | bool | list[Any] | dict[str, Any]

# --- Embeddings -----------------------------------------------------------------------------------


class EmbeddingUsage(TypedDict):
    """The token counts of an embedding request."""

    prompt_tokens: int
    total_tokens: int


class Embedding(TypedDict):
    """The embedding of a text, or one for each of its tokens."""

    index: int
    object: str
    embedding: list[float] | list[list[float]]


class CreateEmbeddingResponse(TypedDict):
    """The result of `Llama.create_embedding`."""

    object: Literal["list"]
    model: str
    data: list[Embedding]
    usage: EmbeddingUsage


# --- Completions ----------------------------------------------------------------------------------


class CompletionLogprobs(TypedDict):
    """The log probabilities of a completion."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(TypedDict):
    """The text of a completion, or of a chunk."""

    text: str
    index: int
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"] | None


class CompletionUsage(TypedDict):
    """The token counts of a completion."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CreateCompletionResponse(TypedDict):
    """The result of `Llama.create_completion`, or a chunk, which has no usage."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: NotRequired[CompletionUsage]


# --- Functions and their calls --------------------------------------------------------------------


class ChatCompletionFunction(TypedDict):
    """A function, with a JSON schema of its parameters."""

    name: str
    description: NotRequired[str]
    parameters: dict[str, JsonType]


class ChatCompletionResponseFunctionCall(TypedDict):
    """A function call with JSON arguments."""

    name: str
    arguments: str


class ChatCompletionMessageToolCall(TypedDict):
    """A function call in a message."""

    id: str
    type: Literal["function"]
    function: ChatCompletionResponseFunctionCall


class ChatCompletionMessageToolCallChunkFunction(TypedDict):
    """A piece of the name and arguments of a function call."""

    name: str | None
    arguments: str


class ChatCompletionMessageToolCallChunk(TypedDict):
    """A piece of a function call in a chunk."""

    index: int
    id: NotRequired[str]
    type: Literal["function"]
    function: ChatCompletionMessageToolCallChunkFunction


class ChatCompletionTool(TypedDict):
    """A function that the model may call."""

    type: Literal["function"]
    function: ChatCompletionFunction


class ChatCompletionFunctionCallOption(TypedDict):
    """The function that the model must call."""

    name: str


class ChatCompletionNamedToolChoice(TypedDict):
    """A *tool_choice* that names the function that the model must call."""

    type: Literal["function"]
    function: ChatCompletionFunctionCallOption


ChatCompletionMessageToolCalls = list[ChatCompletionMessageToolCall]
ChatCompletionRequestFunctionCall = Literal["none", "auto"] | ChatCompletionFunctionCallOption
ChatCompletionToolChoiceOption = Literal["none", "auto", "required"] | ChatCompletionNamedToolChoice
ChatCompletionFunctionParameters = dict[str, JsonType]

# --- Chats: results -------------------------------------------------------------------------------


class ChatCompletionResponseMessage(TypedDict):
    """The message of the model's answer."""

    content: str | None
    tool_calls: NotRequired[ChatCompletionMessageToolCalls]
    role: Literal["assistant", "function"]
    function_call: NotRequired[ChatCompletionResponseFunctionCall]


class ChatCompletionTopLogprobToken(TypedDict):
    """The log probability of a token."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatCompletionLogprobToken(ChatCompletionTopLogprobToken):
    """The log probabilities of a token of the answer and of the most likely tokens."""

    top_logprobs: list[ChatCompletionTopLogprobToken]


class ChatCompletionLogprobs(TypedDict):
    """The log probabilities of an answer."""

    content: list[ChatCompletionLogprobToken] | None
    refusal: list[ChatCompletionLogprobToken] | None


class ChatCompletionResponseChoice(TypedDict):
    """The answer and its finish reason."""

    index: int
    message: ChatCompletionResponseMessage
    logprobs: ChatCompletionLogprobs | None
    finish_reason: str | None


class CreateChatCompletionResponse(TypedDict):
    """The result of `Llama.create_chat_completion`."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatCompletionResponseChoice]
    usage: CompletionUsage


class ChatCompletionStreamResponseDeltaEmpty(TypedDict):
    """The empty delta of the last chunk."""


class ChatCompletionStreamResponseDelta(TypedDict):
    """The delta of a chunk."""

    content: NotRequired[str | None]
    function_call: NotRequired[ChatCompletionResponseFunctionCall | None]
    tool_calls: NotRequired[list[ChatCompletionMessageToolCallChunk] | None]
    role: NotRequired[Literal["system", "user", "assistant", "tool"] | None]


class ChatCompletionStreamResponseChoice(TypedDict):
    """The delta of a chunk and the finish reason."""

    index: int
    delta: ChatCompletionStreamResponseDelta | ChatCompletionStreamResponseDeltaEmpty
    finish_reason: Literal["stop", "length", "tool_calls", "function_call"] | None
    logprobs: NotRequired[ChatCompletionLogprobs | None]


class CreateChatCompletionStreamResponse(TypedDict):
    """A chunk of an answer."""

    id: str
    model: str
    object: Literal["chat.completion.chunk"]
    created: int
    choices: list[ChatCompletionStreamResponseChoice]


# --- Chats: messages ------------------------------------------------------------------------------


class ChatCompletionRequestResponseFormat(TypedDict):
    """The required format of the answer."""

    type: Literal["text", "json_object"]
    schema: NotRequired[JsonType]


class ChatCompletionRequestMessageContentPartText(TypedDict):
    """A text part of a content."""

    type: Literal["text"]
    text: str


class ChatCompletionRequestMessageContentPartImageImageUrl(TypedDict):
    """The URL of an image."""

    url: str
    detail: NotRequired[Literal["auto", "low", "high"]]


class ChatCompletionRequestMessageContentPartImage(TypedDict):
    """An image part of a content, which npurt refuses."""

    type: Literal["image_url"]
    image_url: str | ChatCompletionRequestMessageContentPartImageImageUrl


ChatCompletionRequestMessageContentPart = (
    ChatCompletionRequestMessageContentPartText | ChatCompletionRequestMessageContentPartImage
)


class ChatCompletionRequestSystemMessage(TypedDict):
    """A system message."""

    role: Literal["system"]
    content: str | None


class ChatCompletionRequestUserMessage(TypedDict):
    """A user message."""

    role: Literal["user"]
    content: str | list[ChatCompletionRequestMessageContentPart] | None


class ChatCompletionRequestAssistantMessage(TypedDict):
    """An earlier answer of the model."""

    role: Literal["assistant"]
    content: NotRequired[str]
    tool_calls: NotRequired[ChatCompletionMessageToolCalls]
    function_call: NotRequired[ChatCompletionResponseFunctionCall]


class ChatCompletionRequestToolMessage(TypedDict):
    """The result of a function call."""

    role: Literal["tool"]
    content: str | None
    tool_call_id: str


class ChatCompletionRequestFunctionMessage(TypedDict):
    """The result of a function call, with the older role "function"."""

    role: Literal["function"]
    content: str | None
    name: str


ChatCompletionRequestMessage = (
    ChatCompletionRequestSystemMessage
    | ChatCompletionRequestUserMessage
    | ChatCompletionRequestAssistantMessage
    | ChatCompletionRequestToolMessage
    | ChatCompletionRequestFunctionMessage
)

# --- Other names of the same types ----------------------------------------------------------------

EmbeddingData = Embedding
Completion = CompletionChunk = CreateCompletionStreamResponse = CreateCompletionResponse
ChatCompletion = CreateChatCompletionResponse
ChatCompletionChoice = ChatCompletionResponseChoice
ChatCompletionMessage = ChatCompletionResponseMessage
ChatCompletionChunk = ChatCompletionStreamResponse = CreateChatCompletionStreamResponse
ChatCompletionChunkChoice = ChatCompletionStreamResponseChoice
ChatCompletionChunkDelta = ChatCompletionStreamResponseDelta
ChatCompletionChunkDeltaEmpty = ChatCompletionStreamResponseDeltaEmpty
ChatCompletionFunctions = ChatCompletionResponseFunction = ChatCompletionFunction
ChatCompletionToolFunction = ChatCompletionFunction
ChatCompletionFunctionCall = ChatCompletionResponseFunctionCall
ChatCompletionMessageToolCallFunction = ChatCompletionResponseFunctionCall
ChatCompletionRequestAssistantMessageFunctionCall = ChatCompletionResponseFunctionCall
ChatCompletionStreamResponseDeltaFunctionCall = ChatCompletionResponseFunctionCall
ChatCompletionNamedToolChoiceFunction = ChatCompletionFunctionCallOption
ChatCompletionRequestFunctionCallOption = ChatCompletionFunctionCallOption
