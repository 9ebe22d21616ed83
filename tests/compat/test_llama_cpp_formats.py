"""A script's own chat formatters and handlers work, as with llama_cpp.llama_chat_format."""

import itertools
from typing import Any

import pytest

from npurt.compat.llama_cpp import Llama
from npurt.compat.llama_cpp.llama_chat_format import (
    ChatFormatter,
    ChatFormatterResponse,
    Jinja2ChatFormatter,
    LlamaChatCompletionHandler,
    LlamaChatCompletionHandlerNotFoundException,
    LlamaChatCompletionHandlerRegistry,
    Llava15ChatHandler,
    MoondreamChatHandler,
    chat_formatter_to_chat_completion_handler,
    chatml_function_calling,
    format_chatml,
    format_gemma,
    format_llama2,
    format_llama3,
    format_mistral_instruct,
    format_qwen,
    format_zephyr,
    get_chat_completion_handler,
    hf_tokenizer_config_to_chat_completion_handler,
    hf_tokenizer_config_to_chat_formatter,
    register_chat_completion_handler,
    register_chat_format,
)
from npurt.errors import SettingError, UnsupportedOp
from tests.compat.questions import GREEDY, MESSAGES, PATH
from tests.llm import tiny

TEMPLATE = "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"


@pytest.fixture
def registry():
    registry = LlamaChatCompletionHandlerRegistry()
    yield registry
    if "mine" in registry._handlers:
        registry.unregister_chat_handler("mine")


def answer(result):
    return result["choices"][0]["message"]["content"]


def prompt_of(model, done):
    return model.detokenize(model.input_ids.tolist()[: done["usage"]["prompt_tokens"]]).decode()


def test_a_registered_format_makes_the_prompt(registry):
    seen = {}

    @register_chat_format("mine")
    def mine(messages, **options):
        seen.update(options)
        return ChatFormatterResponse(prompt=f"[{messages[-1]['content']}]", stop="xyz")

    with Llama(PATH, chat_format="mine", verbose=False) as model:
        done = model.create_chat_completion(MESSAGES, max_tokens=4, tools=[], **GREEDY)
        assert prompt_of(model, done) == "[Hello]"
        wanted = model("[Hello]", max_tokens=4, **GREEDY)["choices"][0]["text"]
        assert answer(done) == wanted
        assert seen.keys() == {"functions", "function_call", "tools", "tool_choice"}
        chunks = list(model.create_chat_completion(MESSAGES, max_tokens=4, stream=True, **GREEDY))
        assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == wanted
    with pytest.raises(SettingError, match="'mine' exists already"):
        register_chat_format("mine")(mine)


def test_a_text_of_a_format_ends_an_answer(registry, monkeypatch):
    register_chat_format("mine")(lambda **_: ChatFormatterResponse("ab", stop=["yz"]))
    with Llama(PATH, chat_format="mine", verbose=False) as model:
        ids = itertools.chain(model.tokenize(b"wxyz", add_bos=False), itertools.repeat(5))
        monkeypatch.setattr("npurt.compat.sampling.TokenSampler.sample", lambda *_: next(ids))
        done = model.create_chat_completion(MESSAGES, max_tokens=60)
    assert answer(done) == "wx"
    assert done["choices"][0]["finish_reason"] == "stop"


def test_a_function_of_a_format_ends_an_answer(registry):
    made = ChatFormatterResponse("ab", stopping_criteria=lambda tokens, _: len(tokens) >= 5)
    register_chat_format("mine")(lambda **_: made)
    with Llama(PATH, chat_format="mine", verbose=False) as model:
        done = model.create_chat_completion(MESSAGES, max_tokens=60, **GREEDY)
    assert done["usage"]["total_tokens"] == 5
    assert done["choices"][0]["finish_reason"] == "stop"


def test_a_handler_answers_itself(registry):
    @register_chat_completion_handler("mine")
    def handler(*, llama, messages, temperature, tools=None, **options):
        return llama, messages, temperature, tools

    with Llama(PATH, chat_format="mine", verbose=False) as model:
        given = model.create_chat_completion(MESSAGES, temperature=0.5)
        assert given == (model, MESSAGES, 0.5, None)
    with Llama(PATH, chat_handler=handler, verbose=False) as model:
        assert model.create_chat_completion(MESSAGES, tools=[1])[3] == [1]
    with pytest.raises(SettingError, match="chat_handler is 5"):
        Llama(PATH, chat_handler=5)
    assert get_chat_completion_handler("mine") is handler
    registry.register_chat_completion_handler("mine", answer, overwrite=True)
    assert get_chat_completion_handler("mine") is answer
    registry.unregister_chat_handler("mine")
    with pytest.raises(LlamaChatCompletionHandlerNotFoundException, match="'mine'"):
        get_chat_completion_handler("mine")
    with pytest.raises(SettingError, match="no chat handler 'mine'"):
        registry.unregister_chat_handler("mine")


def test_a_template_makes_the_prompt():
    formatter = Jinja2ChatFormatter(TEMPLATE, eos_token="</s>", bos_token="<s>", stop_token_ids=[7])
    made = formatter(messages=MESSAGES, tools=None)
    assert (made.prompt, made.stop) == ("<s><system>Be brief.<user>Hello", ["</s>"])
    assert made.added_special
    assert [made.stopping_criteria([1, last], None) for last in (6, 7)] == [False, True]
    config = {"chat_template": TEMPLATE, "bos_token": "<s>", "eos_token": "</s>"}
    assert hf_tokenizer_config_to_chat_formatter(config)(messages=MESSAGES).prompt == made.prompt
    with pytest.raises(SettingError, match="lacks"):
        hf_tokenizer_config_to_chat_formatter(config | {"bos_token": None})
    hf = hf_tokenizer_config_to_chat_completion_handler(config | {"bos_token": ""})
    with Llama(PATH, chat_handler=hf, verbose=False) as model:
        done = model.create_chat_completion(MESSAGES, max_tokens=2, **GREEDY)
        assert prompt_of(model, done) == "<system>Be brief.<user>Hello"
    with Llama(PATH, chat_handler=formatter.to_chat_handler(), verbose=False) as model:
        done = model.create_chat_completion(MESSAGES, max_tokens=2, **GREEDY)
        assert prompt_of(model, done).endswith("<system>Be brief.<user>Hello")


def test_formats_of_names_make_prompts():
    turns = [*MESSAGES[1:], {"role": "assistant", "content": "Hi"}, *MESSAGES[1:]]
    assert format_mistral_instruct(messages=turns).prompt == (
        "<s>[INST] Hello [/INST]Hi</s>[INST] Hello [/INST]"
    )
    assert format_chatml(MESSAGES).prompt.endswith("<|im_start|>assistant\n")
    for formatter, mark in (
        (format_gemma, "<start_of_turn>model\n"),
        (format_llama2, "<s>[INST] Hello [/INST] Hi </s>"),
        (format_llama3, "<|begin_of_text|><|start_header_id|>user"),
        (format_zephyr, "<|assistant|>\n"),
    ):
        assert mark in formatter(messages=turns).prompt
    with pytest.raises(UnsupportedOp, match="format_qwen"):
        format_qwen(messages=turns)


def test_protocols_describe_formatters_and_handlers():
    def formatter(*, messages: Any, **options: Any) -> ChatFormatterResponse:
        return ChatFormatterResponse(f"{messages[-1]['content']}!")

    typed: ChatFormatter = formatter
    handler: LlamaChatCompletionHandler = chat_formatter_to_chat_completion_handler(typed)
    with Llama(PATH, verbose=False) as model:
        done = handler(llama=model, messages=MESSAGES, max_tokens=2, **GREEDY)
        assert prompt_of(model, done) == "Hello!"


def test_the_handler_of_calls_wants_its_format(llm):
    with pytest.raises(SettingError, match="chat_format is None"):
        chatml_function_calling(llama=llm, messages=MESSAGES)
    with Llama(PATH, chat_format="chatml-function-calling", verbose=False) as model:
        done = chatml_function_calling(llama=model, messages=MESSAGES, max_tokens=2, **GREEDY)
        assert done["object"] == "chat.completion"


def test_a_file_without_a_template_is_asked_as_llama_2_is(tmp_path):
    file = tiny.read(tiny.path())
    keys = [key for key in file.keys if key[0] != "tokenizer.chat_template"]
    path = tiny.write(file.but(keys=keys), tmp_path)
    with Llama(str(path), verbose=False) as model:
        done = model.create_chat_completion(MESSAGES, max_tokens=1)
        assert "[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHello [/INST]" in prompt_of(model, done)


@pytest.mark.parametrize("handler", [Llava15ChatHandler, MoondreamChatHandler])
def test_what_reads_images_is_refused(handler):
    for call in (handler, handler.from_pretrained):
        with pytest.raises(UnsupportedOp, match=handler.__name__) as caught:
            call(clip_model_path="mmproj.gguf")
        assert "images" in caught.value.remedy
