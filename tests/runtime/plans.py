"""Access to the plan of a model on the host, for tests that read its steps."""


def of(llm):
    """Return the steps of the model's only part."""
    (part,) = llm.state._executor.parts
    return part.segment._program.steps
