"""Find and download models: from the catalogue, hub repositories and URLs."""

from npurt.models.catalogue import CATALOGUE, Model, fetch, find, pip_download
from npurt.models.download import verify
from npurt.models.location import default_folder, folders, locate

__all__ = [
    "CATALOGUE",
    "Model",
    "default_folder",
    "fetch",
    "find",
    "folders",
    "locate",
    "pip_download",
    "verify",
]
