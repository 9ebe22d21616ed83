"""A client of `npurt serve`: a stream, a function call, and structured output.

npurt serve -m models/SmolLM2-135M-Instruct.Q4_1.gguf      # in another terminal
python examples/client.py                                  # after: pip install openai
"""

import argparse
from typing import Literal

import openai
import pydantic

TIMES = {"Bern": "noon", "Lima": "six in the morning", "Tokyo": "eight in the evening"}
GET_TIME = {
    "type": "function",
    "function": {
        "name": "get_time",
        "description": "Return the time in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": list(TIMES)}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


class GetTime(pydantic.BaseModel):
    """The arguments of `get_time`."""

    city: str


class Animal(pydantic.BaseModel):
    """The description of an animal, as the model has to write it."""

    kind: Literal["mammal", "bird", "fish", "insect"]
    legs: Literal[0, 2, 4, 6]


def chat(client):
    stream = client.chat.completions.create(
        model="any",
        messages=[{"role": "user", "content": "What is an NPU?"}],
        max_tokens=32,
        stream=True,
    )
    for chunk in stream:
        for choice in chunk.choices:
            print(choice.delta.content or "", end="", flush=True)
    print()


def call(client):
    messages = [{"role": "user", "content": "What time is it in Lima?"}]
    asked = client.chat.completions.create(
        model="any",
        messages=messages,
        tools=[GET_TIME],
        tool_choice="required",  # forces a call, also from a small model; "auto": the model decides
    )
    message = asked.choices[0].message
    messages.append(message)
    for each in message.tool_calls:
        arguments = GetTime.model_validate_json(each.function.arguments)
        result = TIMES[arguments.city]
        print(f"get_time({arguments.city!r}) = {result!r}")
        messages.append({"role": "tool", "tool_call_id": each.id, "content": result})
    answer = client.chat.completions.create(model="any", messages=messages, max_tokens=32)
    print(answer.choices[0].message.content)


def describe(client):
    answer = client.chat.completions.parse(
        model="any",
        messages=[{"role": "user", "content": "Describe an ant."}],
        response_format=Animal,
    )
    print(repr(answer.choices[0].message.parsed))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8080/v1")
    parser.add_argument("--api-key", default="none")
    args = parser.parse_args()

    with openai.OpenAI(base_url=args.url, api_key=args.api_key) as client:
        chat(client)
        call(client)
        describe(client)


if __name__ == "__main__":
    main()
