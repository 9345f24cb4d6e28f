"""Any sequence of calls leaves every counter at zero: a request counts in once and out once."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from prefix_middleware.core.blocks import HashedPrompt
from prefix_middleware.core.reservation import Reservation
from tests.core.bodies import hashed
from tests.core.routing import NOW, WORKERS, counters, idle, make_router, route

PROMPTS = [hashed(content) for content in ("a" * 3000, "a" * 1500 + "b" * 1500, "c" * 600, "d")]


class LifeCycles(RuleBasedStateMachine):
    """Requests that start, fail, move and repeat themselves, between restarts of the workers."""

    @initialize(policy=st.sampled_from(["tokens", "requests", "cost"]))
    def begin(self, policy: str) -> None:
        self.router, self.now, self.epoch = make_router(policy=policy), NOW, 1.0
        self.all: list[Reservation] = []

    @rule(prompt=st.sampled_from(PROMPTS), random=st.floats(0, 1, exclude_max=True))
    def route(self, prompt: HashedPrompt, random: float) -> None:
        self.all.append(route(self.router, prompt, self.now, random))

    @rule(data=st.data(), status=st.sampled_from([None, 200, 404, 500, 503]))
    def outcome(self, data: st.DataObject, status: int | None) -> None:
        if self.all:
            self.router.outcome(data.draw(st.sampled_from(self.all)), status, self.now)

    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        if self.all:
            self.router.start(data.draw(st.sampled_from(self.all)), self.now)

    @rule(data=st.data(), times=st.integers(1, 2))
    def finish(self, data: st.DataObject, times: int) -> None:
        if self.all:
            reservation = data.draw(st.sampled_from(self.all))
            for _ in range(times):
                self.router.finish(reservation)

    @rule(data=st.data(), served=st.sampled_from([*WORKERS, "stranger"]))
    def move(self, data: st.DataObject, served: str) -> None:
        if self.all:
            self.router.move(data.draw(st.sampled_from(self.all)), served, self.now)

    @rule(worker=st.sampled_from(WORKERS))
    def restart(self, worker: str) -> None:
        self.epoch += 1.0
        self.router.set_epoch(worker, self.epoch, self.now)

    @rule(worker=st.sampled_from(WORKERS), ready=st.booleans())
    def health(self, worker: str, ready: bool) -> None:
        self.router.set_ready(worker, ready, self.now)
        self.router.set_ready("w1", True, self.now)

    @rule(seconds=st.sampled_from([0.01, 0.1, 5.0, 200.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.router.drain(self.now)

    @invariant()
    def no_counter_is_negative(self) -> None:
        assert all(count >= 0 for row in counters(self.router).values() for count in row)

    @invariant()
    def the_freest_is_known(self) -> None:
        states = self.router.fleet.states.values()
        assert self.router.fleet.min_in_flight(states) == min(s.in_flight for s in states)

    def teardown(self) -> None:
        for reservation in self.all:
            self.router.finish(reservation)
        assert counters(self.router) == idle(self.router)
        assert (self.router.gauges(), self.router.index.provisional) == ([], 0)


TestLifeCycles = LifeCycles.TestCase
TestLifeCycles.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
