"""The contract of devices: products, parts of graphs, delta nets; and what checks every device.

May import `npurt.quant` and `npurt.graph`.  Begin with `device` for products and with `segment` for
devices that run parts of graphs.
"""
