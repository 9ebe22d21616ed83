"""Programs for developers; nothing here is installed."""
