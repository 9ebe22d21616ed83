"""The interfaces of OpenAI, Anthropic, Ollama and llama.cpp, over `model`.

May import the rooms `model`, `tools`, `http` and `engine`.
A file reads the requests of an interface and writes its answers.
"""
