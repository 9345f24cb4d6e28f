"""Estimates against the workers' own counters: bytes per token, credit, and caches that are lost."""

import itertools

import pytest

from prefix_middleware.core.facts import EngineFacts, Facts
from prefix_middleware.core.learned import MAX_CREDIT, Learned
from tests.core.said import Engine

BYTES = 3000
MATCH = 600


class Talk:
    """Requests of ours to one worker, and what its counters make of them."""

    def __init__(self) -> None:
        self.learned, self.engine = Learned(), Engine()
        self.losses = [self.look()]

    def request(self, tokens: int = 1000, hits: int = 0, matched: int = 0, text_bytes: int = BYTES) -> None:
        """Send one, which the worker answers."""
        self.learned.note("w1", text_bytes, matched, 1.0)
        self.engine.answer(tokens, hits)

    def look(self, under_way: int = 0, **more: object) -> bool:
        """Compare with the counters."""
        return self.learned.observe("w1", self.engine.facts(**more), under_way, 1.0)

    def rounds(self, count: int, hits: int, matched: int = MATCH) -> list[bool]:
        """Send and compare, one request at a time; return what each look called a loss."""
        looks = []
        for _ in range(count):
            self.request(hits=hits, matched=matched)
            looks.append(self.look())
        return looks

    @property
    def bytes_per_token(self) -> float:
        return self.learned.bytes_per_token.get("m", 4.0)


@pytest.mark.parametrize(("tokens", "learned"), [(1000, 3.0), (600, 5.0), (300, 8.0), (6000, 1.0)])
def test_bytes_per_token_come_from_the_workers_counters(tokens: int, learned: float) -> None:
    """Canonical bytes sent over tokens counted, in steps of 0.05, never beyond 1 to 8."""
    talk = Talk()
    for _ in range(300):
        talk.request(tokens)
        talk.look()
    assert talk.bytes_per_token == pytest.approx(learned, abs=0.101)


def test_one_short_prompt_changes_little() -> None:
    """The first guess weighs as much as two thousand tokens."""
    talk = Talk()
    talk.request(tokens=100, text_bytes=100)
    talk.look()
    assert talk.bytes_per_token == 3.85


def test_traffic_of_others_teaches_nothing() -> None:
    """Where the worker has answered more requests than we sent, its tokens are not those of our bytes."""
    talk = Talk()
    for _ in range(50):
        talk.request()
        talk.engine.answer(9000)
        talk.look()
    assert talk.bytes_per_token == 4.0


def test_what_others_send_between_our_requests_is_not_ours() -> None:
    """A window begins with the first request of ours, not with the last look that found any."""
    talk = Talk()
    for _ in range(50):
        talk.engine.answer(9000)
        talk.look()
        talk.request()
        talk.look()
    assert talk.bytes_per_token == pytest.approx(3.0, abs=0.101)


def test_media_teach_nothing() -> None:
    """An image is a few bytes here and many tokens there: a window with one is left out."""
    talk = Talk()
    for number in range(50):
        talk.request(text_bytes=BYTES if number % 2 else 0)
        talk.request()
        talk.look()
    assert talk.bytes_per_token == pytest.approx(3.05, abs=0.051)
    media = Talk()
    for _ in range(50):
        media.request(tokens=5000, text_bytes=0)
        media.look()
    assert media.bytes_per_token == 4.0


def test_requests_under_way_are_waited_for() -> None:
    """Tokens that are counted there and not yet here would be taken for ours; a long window settles it."""
    talk = Talk()
    talk.engine.answer(50_000)  # under way: the answer has not begun for us
    for _ in range(3):
        talk.request()
        talk.look(under_way=1)
    early = talk.bytes_per_token
    talk.learned.note("w1", 150_000, 0, 1.0)
    talk.look()
    assert [early, talk.bytes_per_token] == [4.0, pytest.approx(3.05, abs=0.05)]


@pytest.mark.parametrize(
    ("hits", "matched", "credit"),
    [(600, 600, 1.0), (300, 600, 0.5), (700, 600, 1.16), (6000, 600, MAX_CREDIT), (500, 0, 1.0)],
)
def test_credit_is_what_was_delivered_of_what_was_found(hits: int, matched: int, credit: float) -> None:
    """Both in tokens, and never above MAX_CREDIT; what nobody predicted gives none."""
    talk = Talk()
    talk.rounds(200, hits, matched)
    assert talk.learned.credit("w1") == pytest.approx(credit, abs=0.02)


def test_little_evidence_changes_little() -> None:
    """One failed prediction of 600 tokens costs a quarter of the credit at most."""
    talk = Talk()
    talk.rounds(1, hits=60)
    assert talk.learned.credit("w1") == pytest.approx(2060 / 2600)


def test_a_match_on_one_of_several_engines_is_a_guess() -> None:
    """Ranks behind one URL have a cache each, and nobody says which is asked; what they deliver is learned."""
    learned = Learned()
    engines = tuple(EngineFacts(engine=str(rank)) for rank in range(4))
    learned.observe("w1", Facts(None, engines), 0, 1.0)
    assert learned.credit("w1") == 0.25


def test_hits_of_others_are_not_ours() -> None:
    """Beside foreign traffic no more than what we predicted counts as delivered."""
    talk = Talk()
    for _ in range(100):
        talk.request(hits=0, matched=MATCH)
        talk.engine.answer(9000, 9000)
        talk.look()
    assert talk.learned.credit("w1") == 1.0


def test_a_sudden_collapse_is_a_lost_cache_once() -> None:
    """Four matches in a row without hits where hits were usual: said once, and the credit stays for the new cache."""
    talk = Talk()
    before, collapse = talk.rounds(20, hits=600), talk.rounds(4, hits=0)
    credit = talk.learned.credit("w1")
    talk.learned.forget("w1")
    talk.look()
    after = talk.rounds(20, hits=600)
    assert (any(before), collapse, any(after), credit) == (False, [False, False, False, True], False, 1.0)


def test_what_is_heard_after_its_window_is_no_evidence() -> None:
    """After an outage of the mirror the others' records come late: their hits were counted long before."""
    talk = Talk()
    for _ in range(20):
        talk.engine.answer(1000, MATCH)
    losses = [talk.look()]
    for _ in range(20):
        talk.learned.note("w1", BYTES, MATCH, 0.9)
    talk.request(hits=MATCH, matched=MATCH)
    assert (losses, talk.look(), talk.learned.credit("w1")) == ([False], False, 1.0)


def test_requests_that_the_worker_has_not_finished_are_no_evidence() -> None:
    """More noted than it has counted: records came twice or were made up, and say nothing of its cache."""
    talk = Talk()
    for _ in range(20):
        talk.learned.note("w1", BYTES, MATCH, 1.0)
    talk.engine.answer(1000)
    assert (talk.look(), talk.learned.credit("w1")) == (False, 1.0)


def test_a_cache_that_never_delivers_loses_its_credit_instead() -> None:
    """After one supposed loss the next empty matches are evidence: credit falls, and nobody cries wolf again."""
    talk = Talk()
    looks = talk.rounds(4, hits=0)
    talk.learned.forget("w1")
    talk.look()
    looks += talk.rounds(100, hits=0)
    assert (looks.count(True), talk.learned.credit("w1") < 0.1) == (1, True)


def test_credit_is_earned_back() -> None:
    """Matches are counted before credit, so a cache that works again shows it, and may be lost again."""
    talk = Talk()
    talk.rounds(110, hits=0)
    low = talk.learned.credit("w1")
    talk.rounds(300, hits=600)
    high = talk.learned.credit("w1")
    assert (low < 0.1, high > 0.95, talk.rounds(4, hits=0)[-1]) == (True, True, True)


def test_empty_matches_between_good_ones_are_evidence() -> None:
    """What leaves a full cache now and then is no lost cache: the credit says it."""
    talk = Talk()
    looks = list(itertools.chain(*(talk.rounds(2, hits=0) + talk.rounds(2, hits=600) for _ in range(60))))
    assert [any(looks), talk.learned.credit("w1")] == [False, pytest.approx(0.5, abs=0.05)]


def test_missing_counters_teach_nothing() -> None:
    """--disable-log-stats: no series, no estimate, no loss."""
    learned = Learned()
    looks = [learned.observe("w1", Facts(), 0, 1.0)]
    for _ in range(50):
        learned.note("w1", BYTES, MATCH, 1.0)
        looks.append(learned.observe("w1", Facts(), 0, 1.0))
    assert (any(looks), learned.credit("w1"), learned.bytes_per_token) == (False, 1.0, {})


def test_what_was_counted_before_a_restart_says_nothing_after_it() -> None:
    """The window in which an epoch began is left out, whatever the counters say."""
    talk = Talk()
    for _ in range(20):
        talk.request(hits=0, matched=MATCH)
        talk.learned.forget("w1")
        talk.look()
    assert (talk.learned.credit("w1"), talk.bytes_per_token) == (1.0, 4.0)
