"""The decision, without I/O: request bytes in, a worker and the facts to share out.

    canonical.py 1   request JSON -> CanonicalPrompt | Skip, in the bytes of writer.py
    blocks.py    2   canonical bytes -> cumulative block hashes
    index.py     3   block hash -> workers; capacity.py: no more than fits into their KV caches
    workers.py   4   what is known of each worker: readiness, epoch, failures; loads.py: what it has to do
    situation.py 5   what a policy sees of the fleet: rendezvous.py names two candidates, index.py the holders
    choose.py    5   a Situation -> Decision with a reason
    knowledge.py 6   fleet and index kept consistent; what other gateways say
    warm.py      6   all of it as a snapshot (snapshot.py) for a gateway that starts later, which looks things up in restored.py
    router.py    6   match, choose, reserve (reservation.py), record as one call; start, finish, merge
    updates.py       the facts that gateways share

1. Nothing here awaits, logs, reads a clock, draws a random number or opens anything: time and randomness are arguments.
2. Every change of state is one synchronous call.
3. The core returns what should happen; the edges make it happen.
"""
