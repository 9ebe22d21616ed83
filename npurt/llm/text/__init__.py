"""Between text and token ids: vocabulary, tokenizer, and chat templates in a metered sandbox.

May import the room `file`.
Begin with `tokenizer`; `chat` renders templates, `sandbox` limits what they may do.
"""
