"""How long the decisions stream may grow, whatever the size of its entries."""

from prefix_middleware.mirror.link import Cap

MIB = 1024 * 1024


def entry_id(number: int) -> bytes:
    return b"%d-0" % number


def test_the_number_of_entries_follows_their_mean_size_until_a_whole_cap_was_seen() -> None:
    """A gateway that has just come knows only the size of what it reads."""
    cap = Cap(64 * MIB)
    before = cap.rule()
    for number in range(1000):
        cap.saw(entry_id(number), 8160)
    name, entries = cap.rule()
    assert before == (b"MAXLEN", 64 * MIB // 2080)
    assert name == b"MAXLEN"
    assert isinstance(entries, int)
    assert abs(entries - 64 * MIB / 8192) < 200


def test_once_a_cap_was_seen_it_is_kept_to_the_byte_also_when_entries_change_their_size() -> None:
    """Ten thousand small entries, then large ones: what is left is never above the cap by more than one mark."""
    cap, sizes = Cap(4 * MIB), [200] * 20_000 + [20_000] * 300
    for number, size in enumerate(sizes):
        cap.saw(entry_id(number), size)
        name, first = cap.rule()
        if name == b"MINID" and number % 97 == 0:
            assert isinstance(first, bytes)
            left = sum(size + 32 for size in sizes[int(first[:-2]) : number + 1])
            assert 4 * MIB <= left <= 4 * MIB + 2 * 64 * 1024
    assert cap.rule()[0] == b"MINID"


def test_another_stream_starts_anew() -> None:
    """Ids of a stream that is gone say nothing about its successor."""
    cap = Cap(1000)
    for number in range(100):
        cap.saw(entry_id(number), 2000)
    cap.forget()
    assert cap.rule()[0] == b"MAXLEN"
