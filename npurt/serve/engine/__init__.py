"""Engines: processes that compute tokens for the front.  What is here knows no HTTP."""
