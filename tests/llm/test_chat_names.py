"""Tests of named chat templates: they write the published prompts; unknown names are refused."""

import pytest

import npurt
from npurt.errors import LayoutError, SettingError
from npurt.llm.text.chat import ChatTemplate
from npurt.llm.text.named_templates import NAMED, source
from tests.llm import tiny
from tests.llm.conftest import open_tiny

TURNS = [
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": "response"},
    {"role": "user", "content": "again"},
]
SYSTEM = {"role": "system", "content": "test"}
IM = "<|im_start|>{}\n{}<|im_end|>\n"
HEADER = "<|start_header_id|>{}<|end_header_id|>\n\n{}<|eot_id|>"
# The prompts that transformers' apply_chat_template makes of these turns.  The template is the
# chat_template in tokenizer_config.json of the model that the comment above each entry names.
# Sources of these templates:
# (a) llama.cpp, tests/test-chat-template.cpp (vendored in llama-cpp-python 0.3.36);
# (b) OptimalScale/LMFlow, docs/source/examples/supported_conversation_template.md;
# (c) swift-jinja's tests of chat templates.
PROMPTS = {
    # teknium/OpenHermes-2.5-Mistral-7B (a), mlabonne/OrpoLlama-3-8B (b).
    "chatml": ("", IM.format("system", "test"),
               IM.format("user", "hello") + IM.format("assistant", "response")
               + IM.format("user", "again") + "<|im_start|>assistant\n"),
    # meta-llama/Meta-Llama-3-8B-Instruct (a, b).
    "llama3": ("<|begin_of_text|>", "<|begin_of_text|>" + HEADER.format("system", "test"),
               HEADER.format("user", "hello") + HEADER.format("assistant", "response")
               + HEADER.format("user", "again")
               + "<|start_header_id|>assistant<|end_header_id|>\n\n"),
    # meta-llama/Llama-2-7b-chat-hf (b).
    "llama2": ("<s>[INST] ", "<s>[INST] <<SYS>>\ntest\n<</SYS>>\n\n",
               "hello [/INST] response </s><s>[INST] again [/INST]"),
    # mistralai/Mistral-7B-Instruct-v0.2 as released; its system message follows the later
    # template (a).
    "mistral": ("<s>[INST] ", "<s>[INST] test\n\n",
                "hello [/INST]response</s>[INST] again [/INST]"),
    # google/gemma-7b-it, google/gemma-2-2b-it (a); the system message follows the template of
    # google/gemma-3-4b-it (transformers, gemma3/convert_gemma3_weights_orbax_to_hf.py).
    "gemma": ("<bos><start_of_turn>user\n", "<bos><start_of_turn>user\ntest\n\n",
              "hello<end_of_turn>\n<start_of_turn>model\nresponse<end_of_turn>\n"
              "<start_of_turn>user\nagain<end_of_turn>\n<start_of_turn>model\n"),
    # microsoft/Phi-3.5-mini-instruct (llama.cpp, models/templates); Phi-3-mini-4k-instruct, with
    # a BOS that later versions do not have (b).
    "phi3": ("", "<|system|>\ntest<|end|>\n",
             "<|user|>\nhello<|end|>\n<|assistant|>\nresponse<|end|>\n"
             "<|user|>\nagain<|end|>\n<|assistant|>\n"),
    # HuggingFaceH4/zephyr-7b-beta (c).
    "zephyr": ("", "<|system|>\ntest</s>\n",
               "<|user|>\nhello</s>\n<|assistant|>\nresponse</s>\n"
               "<|user|>\nagain</s>\n<|assistant|>\n"),
}  # fmt: skip
# `TRIMMED` has the prompts of the same templates for `SPACED`.  They show which texts are trimmed.
SPACED = [
    {"role": "system", "content": " test\n"},
    {"role": "user", "content": "\n hello "},
    {"role": "assistant", "content": "  response \n"},
    {"role": "user", "content": " again\n"},
]
TRIMMED = {
    "chatml": IM.format("system", " test\n") + IM.format("user", "\n hello ")
    + IM.format("assistant", "  response \n") + IM.format("user", " again\n")
    + "<|im_start|>assistant\n",
    "llama3": PROMPTS["llama3"][1] + PROMPTS["llama3"][2],
    "llama2": "<s>[INST] <<SYS>>\n test\n\n<</SYS>>\n\n\n hello [/INST] response </s>"
    "<s>[INST] again [/INST]",
    "mistral": "<s>[INST]  test\n\n\n\n hello  [/INST]  response \n</s>[INST]  again\n [/INST]",
    "gemma": "<bos><start_of_turn>user\n test\n\n\n" + PROMPTS["gemma"][2],
    "phi3": "<|system|>\n test\n<|end|>\n<|user|>\n\n hello <|end|>\n"
    "<|assistant|>\n  response \n<|end|>\n<|user|>\n again\n<|end|>\n<|assistant|>\n",
    "zephyr": "<|system|>\n test\n</s>\n<|user|>\n\n hello </s>\n"
    "<|assistant|>\n  response \n</s>\n<|user|>\n again\n</s>\n<|assistant|>\n",
}  # fmt: skip
BOS = {"llama3": "<|begin_of_text|>", "gemma": "<bos>"}
ANSWERS = {"chatml": "<|im_start|>assistant\n", "gemma": "<start_of_turn>model\n",
           "llama3": "<|start_header_id|>assistant<|end_header_id|>\n\n",
           "phi3": "<|assistant|>\n", "zephyr": "<|assistant|>\n"}  # fmt: skip
ENDS = {"phi3": "</s>"}  # the end of a prompt without the start of an answer


def render(name, messages, **variables):
    template = ChatTemplate(NAMED[name], bos=BOS.get(name, "<s>"), eos="</s>")
    return template.render(messages, **variables)


def test_every_name_has_a_published_prompt():
    assert PROMPTS.keys() == NAMED.keys()


@pytest.mark.parametrize("name", NAMED)
def test_a_named_template_writes_the_published_prompt(name):
    plain, with_system, rest = PROMPTS[name]

    assert render(name, TURNS) == plain + rest
    assert render(name, [SYSTEM, *TURNS]) == with_system + rest


@pytest.mark.parametrize("name", NAMED)
def test_a_prompt_without_the_start_of_an_answer(name):
    plain, _, rest = PROMPTS[name]

    whole = (plain + rest).removesuffix(ANSWERS.get(name, "")) + ENDS.get(name, "")
    assert render(name, TURNS, add_generation_prompt=False) == whole


@pytest.mark.parametrize("name", NAMED)
def test_texts_are_trimmed_where_the_published_template_trims_them(name):
    assert render(name, SPACED) == TRIMMED[name]


@pytest.mark.parametrize("name", ["gemma", "llama2", "mistral"])
@pytest.mark.parametrize(
    "messages", [[SYSTEM], TURNS[1:], [TURNS[0], TURNS[0]], [TURNS[0], SYSTEM]], ids=str
)
def test_formats_of_alternating_turns_refuse_others(name, messages):
    with pytest.raises(LayoutError, match="must"):
        render(name, messages)


def test_a_model_is_opened_with_the_name_of_a_template():
    with open_tiny(chat_template="mistral") as llm:
        llm.chat(TURNS, max_tokens=1)

        bos, eos = (llm.detokenize([i]) for i in (llm.tokenizer.bos, llm.tokenizer.eos))
        prompt = f"{bos}[INST] hello [/INST]response{eos}[INST] again [/INST]"
        assert llm.history == tuple(llm.tokenize(prompt, add_bos=False))
        assert llm.template.source == NAMED["mistral"]


@pytest.mark.parametrize("text", ["chatlm", "ChatML", "Hello", "template.jinja", "", "a" * 5000])
def test_text_that_is_neither_name_nor_jinja_is_refused_at_once(text):
    with pytest.raises(SettingError, match="there is no chat template") as caught:
        npurt.Llama(tiny.path(), chat_template=text)

    assert ("did you mean 'chatml'" in caught.value.what) == (text == "chatlm")
    assert all(name in caught.value.remedy for name in NAMED)
    assert len(caught.value.what) < 200


@pytest.mark.parametrize("value", [5, b"chatml", ["chatml"]])
def test_a_template_is_text(value):
    with pytest.raises(SettingError, match="chat_template is"):
        npurt.Llama(tiny.path(), chat_template=value)


@pytest.mark.parametrize("text", ["{{ messages", "{% if %}", "{{ x }}" * 10000])
def test_jinja_that_does_not_work_is_refused_at_once(text):
    with pytest.raises(SettingError, match="chat_template does not work: ") as caught:
        npurt.Llama(tiny.path(), chat_template=text)

    assert "leave it out for the model's own template" in caught.value.remedy


def test_jinja_stays_as_it_is():
    assert source("{{ messages[0].content }}") == "{{ messages[0].content }}"
