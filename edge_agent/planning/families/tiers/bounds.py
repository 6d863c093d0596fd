"""Lower bounds of the seconds of a step, of many divisions among three tiers at once.

No step takes less than the busiest worker, direction or shared segment, nor a (K + 1)th of any path along which a worker waits
for itself: through the others and back, and through the exchange of the first shared block. The simulator is never below.
"""

from collections.abc import Iterator
from functools import reduce
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from edge_agent.planning.cost import Conditions
from edge_agent.planning.families.tiers.columns import Divisions
from edge_agent.planning.measurements import FLOAT32_BITS, Bools, Floats, Ints
from edge_agent.planning.profile import Profile
from shared.placement.derived import AHEAD_WHERE_NOTHING_IS_STALE


class _SentMessage(NamedTuple):
    """A message of each division: seconds of its sender, of the link and of its receiver, and the halves of round trips."""

    send: Floats
    carry: Floats
    receive: Floats
    travel: Floats
    send_tail: Floats
    """Seconds of the sender for which the message does not wait; the same of the receiver."""
    receive_tail: Floats

    @property
    def total(self) -> Floats:
        return self.send + self.carry + self.receive + self.travel


class Bounds:
    """The bounds of one question under some conditions."""

    def __init__(self, profile: Profile, at: Conditions, staleness: int) -> None:
        costs = profile.by_samples
        assert costs is not None
        self.batch_size, self.blocks, self.staleness = profile.batch_size, len(profile), staleness
        self.samples_ahead = profile.samples_ahead
        self.rates, self._half_trips = at.rates, np.maximum(at.trips, at.trips.T) / 2
        times = np.array(
            [
                [(*block.forward, *block.backward, block.update) for block in costs.blocks[name]]
                for name in profile.names
            ]
        )
        times = times * at.factors[:, None, None]
        self._before: Floats = np.concatenate([np.zeros((3, 1, 5)), np.cumsum(times, axis=1)], axis=1)
        """Constants and slopes of forward and backward, and updates, of the blocks [0, c). Shape (3, L + 1, 5)."""
        self.weights: Floats = np.concatenate([[0.0], np.cumsum(costs.weight_bytes)])
        self.features: Floats = np.array(costs.feature_bytes)
        self.label_bytes = costs.label_bytes
        self._message: Floats = np.array([costs.message_at(name) for name in profile.names])
        """Cost of a message at each worker: constants and slopes."""
        self.widths = costs.widths
        self._coding: Floats = np.zeros((FLOAT32_BITS + 1, 4))
        """Encoding and decoding by bits: constants and slopes."""
        for bits in costs.widths:
            name = costs.codec_of(bits) if bits < FLOAT32_BITS else None
            if name is not None:
                self._coding[bits] = *costs.codecs[name].encode, *costs.codecs[name].decode
        places = {name: place for place, name in enumerate(profile.names)}
        self.segments = [
            [(places[near], places[far]) for near, far in hops] for hops in profile.shared_segments if len(hops) > 1
        ]

    def seconds(self, of: Divisions) -> Floats:
        """Return the bound of each, shape (n,)."""
        return np.concatenate([_Rows(self, of.take(rows)).bound() for rows in _chunks(of.rows)])

    def line(self, worker: Ints, first: Ints, stop: Ints, *, back: bool) -> tuple[Floats, Floats]:
        """Return the seconds of a pass, beside those of each sample."""
        of = self._before[worker, stop] - self._before[worker, first]
        column = 2 if back else 0
        return of[..., column], of[..., column + 1]

    def forward(self, worker: Ints, first: Ints, stop: Ints, samples: Ints) -> Floats:
        """Return the seconds of a forward pass."""
        return self._pass(worker, first, stop, samples, 0)

    def backward(self, worker: Ints, first: Ints, stop: Ints, samples: Ints) -> Floats:
        """Return the seconds of a backward pass, without a replay."""
        return self._pass(worker, first, stop, samples, 2)

    def _pass(self, worker: Ints, first: Ints, stop: Ints, samples: Ints, column: int) -> Floats:
        of = self._before[worker, np.maximum(first, stop)] - self._before[worker, first]
        seconds: Floats = np.where(samples > 0, of[..., column] + of[..., column + 1] * samples, 0.0)
        return seconds

    def update(self, worker: Ints, first: Ints, stop: Ints) -> Floats:
        """Return the seconds of the updates of blocks."""
        seconds: Floats = (self._before[worker, np.maximum(first, stop)] - self._before[worker, first])[..., 4]
        return seconds

    def sent(
        self, sender: Ints, receiver: Ints, plain_bytes: Floats, messages: Bools | Ints, bits: Ints
    ) -> _SentMessage:
        """Return the cost of so many messages of so many bytes in float32 together; nothing between one worker and itself."""
        is_sent = (messages > 0) & (sender != receiver)
        counted = np.where(is_sent, messages, 0)
        sent_bytes = np.where(is_sent, plain_bytes, 0.0)
        coded = sent_bytes * bits / FLOAT32_BITS
        coding = self._coding[bits]
        sending, receiving = (self._message[worker] for worker in (sender, receiver))
        return _SentMessage(
            coding[:, 0] * counted + coding[:, 1] * sent_bytes,
            8 * coded / self.rates[sender, receiver],
            coding[:, 2] * counted + coding[:, 3] * sent_bytes,
            np.where(is_sent, self._half_trips[sender, receiver], 0.0),
            sending[:, 0] * counted + sending[:, 1] * coded,
            receiving[:, 0] * counted + receiving[:, 1] * coded,
        )


class _Rows:
    """The parts of the steps of n divisions."""

    def __init__(self, by: Bounds, of: Divisions) -> None:
        self._by, self._of = by, of
        self._all = np.arange(of.rows)
        self._plain = np.full(of.rows, FLOAT32_BITS)
        blocks = np.full(of.rows, by.blocks)
        batch = np.full(of.rows, by.batch_size)
        o, s, long, p, ms, ml = of.original, of.short, of.long, of.before, of.short_blocks, of.long_blocks
        bs, bl = of.short_samples, of.long_samples
        bo = batch - bs - bl
        device = np.zeros_like(o)
        self._shares = {"s": (bs > 0) & (bl + bo > 0), "l": (bl > 0) & (bs + bo > 0)}
        """True where a helper shares its blocks."""
        self.first_rows = np.where(ms > p, bo, np.where(ml > p, bo + bs, batch))
        """Samples of o on block p."""
        self._forward = {
            "d": by.forward(device, device, p, batch),
            "s": by.forward(s, p, ms, bs),
            "l": by.forward(long, p, ml, bl),
            "first": by.forward(o, p, ms, bo),
            "middle": by.forward(o, ms, ml, bo + bs),
            "end": by.forward(o, ml, blocks, batch),
        }
        self._backward = {
            "d": by.backward(device, device, p, batch),
            "s": by.backward(s, p, ms, bs),
            "l": by.backward(long, p, ml, bl),
            "first": by.backward(o, p, ms, bo),
            "middle": by.backward(o, ms, ml, bo + bs),
            "end": by.backward(o, ml, blocks, batch),
        }
        has_features = p > 0
        rows = {"o": (o, self.first_rows), "s": (s, bs), "l": (long, bl)}
        self._inputs = {
            role: self._feature(device, worker, p, count, raw=~has_features) for role, (worker, count) in rows.items()
        }
        self._returns = {
            role: self._gradient(worker, device, p, np.where(has_features, count, 0))
            for role, (worker, count) in rows.items()
        }
        self._outputs = {
            role: self._feature(worker, o, end, np.where(end < blocks, count, 0), raw=np.zeros_like(has_features))
            for role, worker, end, count in (("s", s, ms, bs), ("l", long, ml, bl))
        }
        self._answers = {
            role: self._gradient(o, worker, end, np.where(end < blocks, count, 0))
            for role, worker, end, count in (("s", s, ms, bs), ("l", long, ml, bl))
        }
        shared = {role: (p, np.where(self._shares[role], end, p)) for role, end in (("s", ms), ("l", ml))}
        self._pushed = {role: self._exchange(rows[role][0], o, *shared[role]) for role in ("s", "l")}
        self._pulled = {role: self._exchange(o, rows[role][0], *shared[role]) for role in ("s", "l")}
        first = {role: (begin, np.minimum(begin + 1, end)) for role, (begin, end) in shared.items()}
        self._first_push = {role: self._exchange(rows[role][0], o, *first[role]) for role in ("s", "l")}
        self._first_pull = {role: self._exchange(o, rows[role][0], *first[role]) for role in ("s", "l")}
        self._bo, self._batch, self._ends = bo, batch, blocks

    def bound(self) -> Floats:
        """Return the bound, shape (n,)."""
        of, by = self._of, self._by
        # From a single trainer nothing comes back, so nothing can be stale.
        only_there = (of.before == 0) & (of.long_samples == 0)
        ahead = np.where(only_there, max(by.staleness, AHEAD_WHERE_NOTHING_IS_STALE), by.staleness)
        # Raw samples may leave before their step begins, and features may not.
        fed = np.where(of.before == 0, np.maximum(ahead, by.staleness + by.samples_ahead), ahead)
        paths = reduce(np.maximum, self._paths((ahead + 1) / (fed + 1))) / (ahead + 1)
        return reduce(np.maximum, [*self._busy(), *self._carrying(), paths])

    def _feature(self, sender: Ints, receiver: Ints, at: Ints, rows: Ints, *, raw: Bools) -> _SentMessage:
        bits = np.where(raw, FLOAT32_BITS, self._of.widths[self._all, sender, receiver])
        return self._by.sent(sender, receiver, self._by.features[at] * rows, rows > 0, bits)

    def _gradient(self, sender: Ints, receiver: Ints, at: Ints, rows: Ints) -> _SentMessage:
        return self._by.sent(sender, receiver, self._by.features[at] * rows, rows > 0, self._plain)

    def _exchange(self, sender: Ints, receiver: Ints, first: Ints, stop: Ints) -> _SentMessage:
        size = self._by.weights[np.maximum(first, stop)] - self._by.weights[first]
        return self._by.sent(sender, receiver, size, np.maximum(stop - first, 0), self._plain)

    def _messages(self) -> Iterator[tuple[Ints, Ints, _SentMessage]]:
        """Yield all messages of a step but labels, with their senders and receivers."""
        of, device = self._of, np.zeros_like(self._of.original)
        workers = {"o": of.original, "s": of.short, "l": of.long}
        for role, worker in workers.items():
            yield device, worker, self._inputs[role]
            yield worker, device, self._returns[role]
        for role in ("s", "l"):
            yield workers[role], of.original, self._outputs[role]
            yield of.original, workers[role], self._answers[role]
            yield workers[role], of.original, self._pushed[role]
            yield of.original, workers[role], self._pulled[role]

    def _busy(self) -> Iterator[Floats]:
        """Yield the seconds of each worker."""
        by, of = self._by, self._of
        busy = np.zeros((3, of.rows))
        device = np.zeros_like(of.original)
        p, ms, ml, ends = of.before, of.short_blocks, of.long_blocks, self._ends
        low, middle = self._shares["s"], self._shares["l"]
        for name, worker in (("d", device), ("s", of.short), ("l", of.long)):
            busy[worker, self._all] += self._forward[name] + self._backward[name]
        for name in ("first", "middle", "end"):
            busy[of.original, self._all] += self._forward[name] + self._backward[name]
        zero = np.zeros_like(p)
        busy[device, self._all] += by.update(device, zero, p)
        busy[of.original, self._all] += by.update(of.original, np.where(middle, ms, ml), ends)
        busy[of.original, self._all] += np.where(low, by.update(of.original, p, ms), 0.0)
        busy[of.short, self._all] += np.where(low, 0.0, by.update(of.short, p, ms))
        busy[of.long, self._all] += np.where(middle, 0.0, by.update(of.long, p, ml))
        if by.staleness:
            for name, worker, stop in (("s", of.short, ms), ("l", of.long, ml), ("d", device, p)):
                busy[worker, self._all] += np.where(stop < by.blocks, self._forward[name], 0.0)
        for sender, receiver, sent in self._messages():
            busy[sender, self._all] += sent.send + sent.send_tail
            busy[receiver, self._all] += sent.receive + sent.receive_tail
        yield from busy

    def _carrying(self) -> Iterator[Floats]:
        """Yield the seconds of each direction, and of each shared segment one way."""
        carried = np.zeros((3, 3, self._of.rows))
        for sender, receiver, sent in self._messages():
            carried[sender, receiver, self._all] += sent.carry
        for worker, rows in self._heads():
            size = np.where(worker > 0, self._by.label_bytes * rows, 0.0)
            carried[0, worker, self._all] += 8 * size / self._by.rates[0, worker]
        yield from (carried[near, far] for near in range(3) for far in range(3) if near != far)
        for links in self._by.segments:
            for ways in (links, [(far, near) for near, far in links]):
                rates = [float(self._by.rates[way]) for way in ways]
                yield sum(carried[way] * rate for way, rate in zip(ways, rates, strict=True)) / max(rates)

    def _heads(self) -> Iterator[tuple[Ints, Ints]]:
        """Yield the workers that compute losses, with the number of their samples."""
        of, none = self._of, np.zeros_like(self._of.before)
        l_ends, s_ends = of.long_blocks == self._ends, of.short_blocks == self._ends
        yield of.long, np.where(l_ends, of.long_samples, none)
        yield of.short, np.where(s_ends, of.short_samples, none)
        yield of.original, np.where(s_ends, self._bo, np.where(l_ends, self._bo + of.short_samples, self._batch))

    def _paths(self, fed: Floats) -> Iterator[Floats]:
        """Yield the seconds from a worker's beginning of something to its next beginning of the same.

        fed: the part that counts of a way that begins with the device's sends.
        """
        of, by, forward, backward = self._of, self._by, self._forward, self._backward
        out = {role: each.total for role, each in self._outputs.items()}
        answer = {role: each.total for role, each in self._answers.items()}
        there = {role: each.total for role, each in self._inputs.items()}
        back = {role: each.total for role, each in self._returns.items()}
        l_ends, s_ends = of.long_blocks == self._ends, of.short_blocks == self._ends
        has_s, has_l, has_o = of.short_samples > 0, of.long_samples > 0, self.first_rows > 0
        has_middle = self._bo + of.short_samples > 0

        def where(known: Bools, seconds: Floats) -> Floats:
            return np.where(known, seconds, 0.0)

        middle = forward["middle"] + backward["middle"]
        end = forward["end"] + backward["end"]
        # Each part from its beginning to the middle or the end of o, and from there back to where it began.
        up_s, down_s = forward["s"] + out["s"], answer["s"] + backward["s"]
        up_l, down_l = forward["l"] + out["l"], answer["l"] + backward["l"]
        path_s = where(has_s, up_s + down_s + where(~s_ends, middle + end))
        path_l = where(has_l, up_l + down_l + where(~l_ends, end))
        path_o = where(has_o, forward["first"] + backward["first"] + where(~s_ends, middle + end))
        yield from (path_s, path_l, path_o)

        # The device's own blocks come first and last.
        device = forward["d"] + backward["d"]
        through_s = np.where(has_s, there["s"] + up_s, -np.inf), np.where(has_s, down_s + back["s"], -np.inf)
        through_o = (
            np.where(has_o, there["o"] + forward["first"], -np.inf),
            np.where(has_o, backward["first"] + back["o"], -np.inf),
        )
        through_l = np.where(has_l, there["l"] + up_l, -np.inf), np.where(has_l, down_l + back["l"], -np.inf)
        turned = [
            np.where(s_ends, np.maximum(sum(through_s), sum(through_o)), -np.inf),
            np.where(
                l_ends & ~s_ends & has_middle,
                np.maximum(through_s[0], through_o[0]) + middle + np.maximum(through_s[1], through_o[1]),
                -np.inf,
            ),
            np.where(l_ends, sum(through_l), -np.inf),
            np.where(
                ~l_ends,
                np.maximum(through_l[0], np.maximum(through_s[0], through_o[0]) + forward["middle"])
                + end
                + np.maximum(through_l[1], np.maximum(through_s[1], through_o[1]) + backward["middle"]),
                -np.inf,
            ),
        ]
        yield fed * (device + np.maximum(0.0, reduce(np.maximum, turned)))

        # A forward pass of block p waits for its new weights, and so for the parts of all.
        update = by.update(of.original, of.before, np.minimum(of.before + 1, self._ends))
        tails = {}
        for role, worker, stop, rows in (
            ("s", of.short, of.short_blocks, of.short_samples),
            ("l", of.long, of.long_blocks, of.long_samples),
        ):
            last = by.backward(worker, np.maximum(stop - 1, of.before), stop, rows)
            # The gradient of the last block leaves first, if that is shared.
            pushed = np.maximum(backward[role] + self._first_push[role].total, last + self._pushed[role].carry)
            tails[role] = np.where(self._shares[role], pushed, -np.inf)
        returning = reduce(
            np.maximum,
            [
                np.where(l_ends, -np.inf, answer["l"] + tails["l"]),
                np.where(l_ends, -np.inf, backward["middle"] + answer["s"] + tails["s"]),
                np.where(l_ends, -np.inf, backward["middle"] + backward["first"]),
            ],
        )
        for role, begun in (
            ("s", forward["s"] + out["s"] + forward["middle"]),
            ("l", forward["l"] + out["l"]),
        ):
            shares, pulled = self._shares[role], self._first_pull[role].total
            yield where(shares & ~l_ends, begun + end + returning + update + pulled)
            own = forward[role] + where(~(s_ends if role == "s" else l_ends), out[role] + answer[role])
            yield where(shares, own + tails[role] + update + pulled)
        is_shared = self._shares["s"] | self._shares["l"]
        started = forward["first"] + forward["middle"] + end
        yield where(is_shared & has_o & ~l_ends, started + returning + update)


def _chunks(count: int, size: int = 1 << 15) -> Iterator[slice]:
    """Yield slices of so many rows, which fit into a processor's cache."""
    yield from (slice(*ends) for ends in pairwise([*range(0, count, size), count])) if count else [slice(0, 0)]
