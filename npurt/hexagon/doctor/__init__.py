"""What `npurt doctor` checks of a Hexagon, and whether a DSP can load a skel (`loadable`).

May import every other room.
Begin with `checks`, the list.
"""
