"""As llama_cpp.llama_types: the types of requests and results, which are OpenAI's.

They describe dicts for a type checker; npurt's own annotations are wider.
"""

from typing import Any, Literal, NotRequired, TypedDict

JsonType = None | int | str | bool | list[Any] | dict[str, Any]

# --- Embeddings -----------------------------------------------------------------------------------


class EmbeddingUsage(TypedDict):
    """Counts of tokens."""

    prompt_tokens: int
    total_tokens: int


class Embedding(TypedDict):
    """The embedding of a text, or one for each of its tokens."""

    index: int
    object: str
    embedding: list[float] | list[list[float]]


class CreateEmbeddingResponse(TypedDict):
    """What `Llama.create_embedding` returns."""

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
    """Counts of tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CreateCompletionResponse(TypedDict):
    """What `Llama.create_completion` returns; chunks have no usage."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: NotRequired[CompletionUsage]


# --- Functions and their calls --------------------------------------------------------------------


class ChatCompletionFunction(TypedDict):
    """A function; its parameters are a JSON schema."""

    name: str
    description: NotRequired[str]
    parameters: dict[str, JsonType]


class ChatCompletionResponseFunctionCall(TypedDict):
    """A call; its arguments are JSON."""

    name: str
    arguments: str


class ChatCompletionMessageToolCall(TypedDict):
    """A call in a message."""

    id: str
    type: Literal["function"]
    function: ChatCompletionResponseFunctionCall


class ChatCompletionMessageToolCallChunkFunction(TypedDict):
    """A piece of a call."""

    name: str | None
    arguments: str


class ChatCompletionMessageToolCallChunk(TypedDict):
    """A piece of a call in a chunk."""

    index: int
    id: NotRequired[str]
    type: Literal["function"]
    function: ChatCompletionMessageToolCallChunkFunction


class ChatCompletionTool(TypedDict):
    """A function that may be called."""

    type: Literal["function"]
    function: ChatCompletionFunction


class ChatCompletionFunctionCallOption(TypedDict):
    """A function that must be called."""

    name: str


class ChatCompletionNamedToolChoice(TypedDict):
    """The same as a *tool_choice*."""

    type: Literal["function"]
    function: ChatCompletionFunctionCallOption


ChatCompletionMessageToolCalls = list[ChatCompletionMessageToolCall]
ChatCompletionRequestFunctionCall = Literal["none", "auto"] | ChatCompletionFunctionCallOption
ChatCompletionToolChoiceOption = Literal["none", "auto", "required"] | ChatCompletionNamedToolChoice
ChatCompletionFunctionParameters = dict[str, JsonType]

# --- Chats: results -------------------------------------------------------------------------------


class ChatCompletionResponseMessage(TypedDict):
    """The answer."""

    content: str | None
    tool_calls: NotRequired[ChatCompletionMessageToolCalls]
    role: Literal["assistant", "function"]
    function_call: NotRequired[ChatCompletionResponseFunctionCall]


class ChatCompletionTopLogprobToken(TypedDict):
    """How likely a token was."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatCompletionLogprobToken(ChatCompletionTopLogprobToken):
    """How likely a token of the answer was, and the likeliest ones."""

    top_logprobs: list[ChatCompletionTopLogprobToken]


class ChatCompletionLogprobs(TypedDict):
    """The log probabilities of an answer."""

    content: list[ChatCompletionLogprobToken] | None
    refusal: list[ChatCompletionLogprobToken] | None


class ChatCompletionResponseChoice(TypedDict):
    """The answer, and how it ended."""

    index: int
    message: ChatCompletionResponseMessage
    logprobs: ChatCompletionLogprobs | None
    finish_reason: str | None


class CreateChatCompletionResponse(TypedDict):
    """What `Llama.create_chat_completion` returns."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatCompletionResponseChoice]
    usage: CompletionUsage


class ChatCompletionStreamResponseDeltaEmpty(TypedDict):
    """What the last chunk adds: nothing."""


class ChatCompletionStreamResponseDelta(TypedDict):
    """What a chunk adds."""

    content: NotRequired[str | None]
    function_call: NotRequired[ChatCompletionResponseFunctionCall | None]
    tool_calls: NotRequired[list[ChatCompletionMessageToolCallChunk] | None]
    role: NotRequired[Literal["system", "user", "assistant", "tool"] | None]


class ChatCompletionStreamResponseChoice(TypedDict):
    """What a chunk adds, and how the answer ended."""

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
    """What the answer must be."""

    type: Literal["text", "json_object"]
    schema: NotRequired[JsonType]


class ChatCompletionRequestMessageContentPartText(TypedDict):
    """A part of a content: text."""

    type: Literal["text"]
    text: str


class ChatCompletionRequestMessageContentPartImageImageUrl(TypedDict):
    """Where an image is."""

    url: str
    detail: NotRequired[Literal["auto", "low", "high"]]


class ChatCompletionRequestMessageContentPartImage(TypedDict):
    """A part of a content: an image, which npurt refuses."""

    type: Literal["image_url"]
    image_url: str | ChatCompletionRequestMessageContentPartImageImageUrl


ChatCompletionRequestMessageContentPart = (
    ChatCompletionRequestMessageContentPartText | ChatCompletionRequestMessageContentPartImage
)


class ChatCompletionRequestSystemMessage(TypedDict):
    """What the model should do."""

    role: Literal["system"]
    content: str | None


class ChatCompletionRequestUserMessage(TypedDict):
    """What the user says."""

    role: Literal["user"]
    content: str | list[ChatCompletionRequestMessageContentPart] | None


class ChatCompletionRequestAssistantMessage(TypedDict):
    """What the model said."""

    role: Literal["assistant"]
    content: NotRequired[str]
    tool_calls: NotRequired[ChatCompletionMessageToolCalls]
    function_call: NotRequired[ChatCompletionResponseFunctionCall]


class ChatCompletionRequestToolMessage(TypedDict):
    """What a call returned."""

    role: Literal["tool"]
    content: str | None
    tool_call_id: str


class ChatCompletionRequestFunctionMessage(TypedDict):
    """The same by an older name."""

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
