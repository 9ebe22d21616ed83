"""Open a device by its name, and check the arguments that users pass.

May import every device package, and no other subpackage.
Begin with `devices`.
"""
