"""Unaligned vector accesses to VTCM end the process with `vtcm_traps=1`, and no others do."""

import pytest

STORE, LOAD, FORMS = 0, 1, 2  # kinds of access of skels/vectors.c
HEAP, VTCM = 0, 1


def moved(rpc, where, offset, kind):
    """Move six vectors; return the code of the call, or the number of wrong bytes."""
    handle = rpc.opened("vectors")
    code, _ = rpc.call_words(handle, 2, where, offset, kind)
    rpc.close(handle)
    return code


@pytest.mark.parametrize("kind", [STORE, LOAD, FORMS])
@pytest.mark.parametrize(("where", "offset"), [(HEAP, 0), (HEAP, 4), (VTCM, 0), (VTCM, 256)])
def test_other_accesses_move_the_same_bytes_with_and_without_the_setting(rpc, kind, where, offset):
    assert moved(rpc, where, offset, kind) == 0
    rpc.control("vtcm_traps=1")
    assert moved(rpc, where, offset, kind) == 0


@pytest.mark.parametrize("kind", [STORE, LOAD, FORMS])
@pytest.mark.parametrize("offset", [4, 127])
def test_an_unaligned_access_to_vtcm_ends_the_process(rpc, kind, offset):
    rpc.control("vtcm_traps=1")
    assert moved(rpc, VTCM, offset, kind) != 0
    assert "an unaligned vector access to VTCM" in rpc.error()
