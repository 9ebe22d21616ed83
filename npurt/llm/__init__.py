"""GGUF language models: file, tokenizer, chat template, sampling, generation."""
