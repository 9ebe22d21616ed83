"""The record of the work: calls, multiply-adds and time by op and device, and traces of steps.

May import no other subpackage.
Begin with `ledger`.
"""
