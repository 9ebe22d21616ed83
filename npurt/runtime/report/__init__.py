"""The record of what ran: calls, work and time by op and device, and traces of single steps.

May import no other room.
Begin with `ledger`.
"""
