"""As mlx_lm.models: prompt caches."""
