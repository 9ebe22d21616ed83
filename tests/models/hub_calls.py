"""Downloads for the tests of hubs and URLs."""

from pathlib import Path

import pytest
from huggingface_hub import constants

from npurt.errors import DownloadError
from npurt.models.hub import Hub
from npurt.models.reference import Reference


def fetch(text):
    return Hub.usual().fetch(Reference.parse(text), progress=False)


def refused(text, error=DownloadError):
    with pytest.raises(error) as caught:
        fetch(text)
    assert caught.value.remedy
    return caught.value


def blobs():
    return sorted(path.name for path in Path(constants.HF_HUB_CACHE).glob("*/blobs/*"))
