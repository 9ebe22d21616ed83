"""The RK3588 NPU: our own register programs, through the rocket or the rknpu driver."""
