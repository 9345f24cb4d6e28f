"""Any sequence of calls leaves every counter at zero: a request counts in once and out once."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from prefix_middleware.core.blocks import HashedPrompt
from prefix_middleware.core.loads import GAUGE_SECONDS
from prefix_middleware.core.reservation import Reservation
from prefix_middleware.core.updates import Notice, Suspect, Update
from tests.core.bodies import hashed
from tests.core.routing import NOW, WORKERS, counters, gauge, idle, make_router, route

PROMPTS = [hashed(content) for content in ("a" * 3000, "a" * 1500 + "b" * 1500, "c" * 600, "d")]
NAMES = st.sampled_from(WORKERS)


class LifeCycles(RuleBasedStateMachine):
    """Requests that start, fail, move and repeat themselves, while workers restart and other gateways talk."""

    @initialize(policy=st.sampled_from(["tokens", "requests", "cost"]), kv=st.sampled_from([None, 1000]))
    def begin(self, policy: str, kv: int | None) -> None:
        self.router = make_router(policy=policy, kv_tokens=kv, block_tokens=(128,) * 64)
        self.other = make_router(policy=policy)
        self.now, self.epoch = NOW, 1.0
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

    @rule(data=st.data(), times=st.integers(1, 2), generated=st.sampled_from([0, 300, 5000]))
    def finish(self, data: st.DataObject, times: int, generated: int) -> None:
        if self.all:
            reservation = data.draw(st.sampled_from(self.all))
            for _ in range(times):
                self.router.finish(reservation, generated)

    @rule(data=st.data(), served=st.sampled_from([*WORKERS, "stranger"]))
    def move(self, data: st.DataObject, served: str) -> None:
        if self.all:
            self.router.move(data.draw(st.sampled_from(self.all)), served, self.now)

    @rule(worker=NAMES, by=st.sampled_from([1.0, 1.0, -2.0]))
    def restart(self, worker: str, by: float) -> None:
        self.epoch += by
        for _ in range(2):  # an older start time counts when it is seen twice
            self.router.set_epoch(worker, self.epoch, self.now)

    @rule(worker=NAMES, ready=st.booleans())
    def health(self, worker: str, ready: bool) -> None:
        self.router.set_ready(worker, ready, self.now)
        self.router.set_ready("w1", True, self.now)

    @rule(worker=NAMES, tokens=st.sampled_from([None, 1, 700, 5000]))
    def learn_capacity(self, worker: str, tokens: int | None) -> None:
        self.router.index.set_capacity(worker, tokens)
        self.router.fleet.set_capacity(self.router.fleet.states[worker], tokens)

    @rule(prompt=st.sampled_from(PROMPTS), starts=st.booleans(), age=st.sampled_from([0.0, 1.0, 130.0]))
    def others_serve(self, prompt: HashedPrompt, starts: bool, age: float) -> None:
        reservation = route(self.other, prompt, self.now)
        if starts:
            self.other.start(reservation, self.now)
        told = self.other.drain(self.now + 1)
        self.other.finish(reservation)
        self.router.merge("o1", [*told, *self.other.drain(self.now + 1)], age, self.now)

    @rule(worker=st.sampled_from([*WORKERS, "stranger"]), data=st.data())
    def others_say(self, worker: str, data: st.DataObject) -> None:
        epoch = self.router.fleet.states.get(worker, self.router.fleet.states["w1"]).epoch
        said: list[Update] = [Suspect(worker, epoch, 5.0), Suspect(worker, epoch, 0.0),
                              Notice(worker, epoch, self.epoch + 0.5)]  # fmt: skip
        self.router.merge("o1", [data.draw(st.sampled_from(said))], 0.0, self.now)

    @rule(origin=st.sampled_from(["o1", "o2"]), worker=NAMES, count=st.integers(0, 3),
          epoch=st.sampled_from([1.0, 2.0]))  # fmt: skip
    def others_load(self, origin: str, worker: str, count: int, epoch: float) -> None:
        self.router.merge_gauges(origin, [gauge(worker, count, epoch=epoch)], self.now)

    @rule(seconds=st.sampled_from([0.01, 0.1, 5.0, 200.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.router.drain(self.now)

    @invariant()
    def no_counter_is_negative(self) -> None:
        assert all(count >= 0 for row in counters(self.router).values() for count in row)
        states = self.router.fleet.states.values()
        assert all(
            min(vars_of) >= 0 for vars_of in ((s.others_in_flight, s.others_backlog_tokens) for s in states)
        )

    @invariant()
    def counters_are_those_of_the_living_requests(self) -> None:
        """In-flight is exactly the number of unfinished requests that no restart has ended."""
        states = self.router.fleet.states
        living = [r for r in self.all if not r.finished and r.generation == states[r.worker].generation]
        assert {name: row[0] for name, row in counters(self.router).items()} == {
            name: sum(r.worker == name for r in living) for name in states
        }

    @invariant()
    def the_freest_is_known(self) -> None:
        states = self.router.fleet.states.values()
        assert self.router.fleet.min_in_flight(states) == min(
            s.in_flight + s.others_in_flight for s in states
        )

    def teardown(self) -> None:
        for reservation in self.all:
            self.router.finish(reservation)
        assert counters(self.router) == idle(self.router)
        assert self.router.gauges() == []
        self.router.fleet.expire(self.now + GAUGE_SECONDS + 0.1)
        states = self.router.fleet.states.values()
        assert [(s.others_in_flight, s.others_backlog_tokens, s.others_prompt_tokens) for s in states] == [
            (0, 0, 0)
        ] * 3
        self.router.index.best(PROMPTS[0].hashes, WORKERS, self.now + 1000.0)  # what has expired goes here
        assert self.router.index.provisional == 0


TestLifeCycles = LifeCycles.TestCase
TestLifeCycles.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
