"""The checks of `npurt doctor` for a Hexagon, and rules for loadable skels (`loadable`).

May import every other subpackage.
Begin with `checks`, the list of checks.
"""
