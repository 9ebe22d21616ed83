"""Names of the package mlx_lm.models: prompt caches."""
