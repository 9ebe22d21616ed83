"""The Qualcomm Hexagon CDSP, through the system's libcdsprpc, with our own code on the DSP."""
