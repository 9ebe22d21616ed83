"""Make the tokens of a pair of texts, a query and a document, for a reranker.

Source of the pair: llama.cpp tools/server/server-common.cpp (format_prompt_rerank), MIT.
"""

import re

from npurt.llm.file.metadata import Metadata, require
from npurt.llm.text.tokenizer import Tokenizer

Segmented = tuple[list[int], list[int] | None]  # token ids, and for encoders each token's segment

TEMPLATE = "tokenizer.chat_template.rerank"  # metadata: the prompt of a pair, with PLACES
PLACES = re.compile(r"\{query\}|\{document\}")


def whole(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the token ids of *text*, with BOS and EOS if the file requires them.

    Control tokens that are spelt out in the text are encoded as plain text.
    """
    return tokenizer.encode(text, special=False) + _end(tokenizer)


def cut(tokenizer: Tokenizer, ids: list[int], length: int) -> list[int]:
    """Return the first *length* tokens of a text from `whole`; EOS at its end is not cut off."""
    if len(ids) <= length:
        return ids
    end = _end(tokenizer)
    ends = end if end == ids[-1:] else []
    return [*ids[: length - len(ends)], *ends]


def pair(tokenizer: Tokenizer, metadata: Metadata, query: str, document: str) -> Segmented:
    """Return the token ids of a query with a document, and the segment of each token.

    If the file has a template for pairs, control tokens spelt out in a text are encoded as control
    tokens.
    """
    if TEMPLATE in metadata:
        texts = {"{query}": query, "{document}": document}
        template = require(metadata, TEMPLATE, str)
        prompt = PLACES.sub(lambda place: texts[place[0]], template)
        return tokenizer.encode(prompt, add_bos=False), None
    first = whole(tokenizer, query)
    second = tokenizer.encode(document, add_bos=False, special=False) + _end(tokenizer)
    return first + second, [0] * len(first) + [1] * len(second)


def _end(tokenizer: Tokenizer) -> list[int]:
    """Return EOS if the file requires it at the end of each text; otherwise nothing."""
    return [tokenizer.eos] if tokenizer.add_eos and tokenizer.eos is not None else []
