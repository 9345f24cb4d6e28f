"""Data-parallel ranks as PREFIX_WORKERS names them."""

import pytest

from prefix_middleware import Settings, SettingsError, Worker


def test_a_rank_is_read_behind_the_url() -> None:
    """One worker for each data-parallel rank, all at one address."""
    read = Settings.from_env({"PREFIX_WORKERS": "a=http://h:1#0, b=http://h:1#11,c=http://h:2"}).workers
    assert read == (Worker("a", "http://h:1", 0), Worker("b", "http://h:1", 11), Worker("c", "http://h:2"))


@pytest.mark.parametrize("text", ["a=http://h:1#", "a=http://h:1#x", "a=http://h:1#-1", "a=http://h:1#1024"])
def test_a_rank_that_is_none_is_refused(text: str) -> None:
    """0 to 1023."""
    with pytest.raises(SettingsError) as raised:
        Settings.from_env({"PREFIX_WORKERS": text})
    assert raised.value.field == "workers"
