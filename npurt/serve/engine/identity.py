"""The identity of the files that an engine has opened, and of npurt itself."""

from npurt.llm.decode.llama import Llama
from npurt.serve.engine.protocol import MODEL
from npurt.version import __version__


def identity(llm: Llama) -> dict[str, str]:
    """Return the strings that two engines must have in common to generate the same tokens.

    `LoadedModel.identity` notices other weights even if the header, size and time of the file are
    equal.
    """
    description, drafts = llm.model.setup.description, llm.generator.drafts
    return {
        "npurt": __version__,
        MODEL: description.file.identity,
        **{f"the adapter {each.name}": each.digest.hex() for each in description.adapters},
        "the content of the model": llm.model.identity.hex(),  # and of its adapters
        **({"the draft": drafts.identity} if drafts and drafts.identity else {}),
    }
