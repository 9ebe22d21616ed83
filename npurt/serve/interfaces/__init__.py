"""The HTTP interfaces of OpenAI, Anthropic, Ollama and llama.cpp.

May import the packages `front`, `tools`, `http` and `engine`.
Each module reads the requests of an interface and writes its responses.
"""
