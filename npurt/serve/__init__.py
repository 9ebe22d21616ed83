"""`npurt serve`: HTTP interfaces of language models.

The *front* is the HTTP process: it renders chat templates, tokenizes prompts, parses completions,
and stores every token of an open sequence.  An *engine* is a child process that holds the device.
`engine.protocol` defines the messages between the front and an engine.
"""
