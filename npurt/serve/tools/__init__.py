"""The tools of a request.  `npurt.llm.decode.calls` parses the calls of an answer.

May import the package `http`.
"""
