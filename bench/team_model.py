#!/usr/bin/env python3
"""Estimates the cost of fork and join of the compute threads on large machines, by a model of cache line transfers.

  bench/team_model.py [--sockets 2] [--cores 64] [--gbps 300] [--near 25] [--socket 90] [--far 150] [--busy 20]

--cores and --gbps are those of one socket. --near, --socket and --far are the latencies, in ns, of moving a cache line between
cores that share a last-level cache, between other cores of a socket, and between sockets. A line has one owner at a time, and each
further reader of a line that was just written waits --busy ns longer. The defaults have the magnitude that is published for EPYC
and Xeon servers of 2020 to 2024 (core-to-core latency tables); they were not measured.

The model simulates src/base/system/team.c: the caller starts each group of 8 threads by a store, each thread counts itself as done
in its group, and the last thread of a group counts the group. "one counter" is a plain barrier: a single counter for all threads.
Then the panels of each matrix of a layer are divided among the threads as cpu_nodes.c does, with 2 % of jitter in the time of a
panel. The time of a layer is compared with the time to read the weights at full memory bandwidth.
"""
import argparse
import heapq
import random

GROUP, PANEL_ROWS, PIECE, RANDOM = 8, 32, 8, 1

# Rows and columns of the matrices of a layer, and the fork-joins of a step with several users (norms, packing of inputs,
# products, attention).
SHAPES = {
    "ChatGLM3-6B": ([(4608, 4096), (4096, 4096), (27392, 4096), (4096, 13696)], 13),
    "Llama-3.3-70B": ([(10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672)], 13),
}
BYTES = 18 / 32  # of a weight in Q4_0


class Machine:
    def __init__(self, args, n_threads):
        self.args, self.n = args, n_threads
        self.per_socket = max(1, n_threads // args.sockets)

    def move(self, a, b):
        """ns to move a line from the core of thread a to that of thread b."""
        if a == b:
            return 0
        if a // self.per_socket != b // self.per_socket:
            return self.args.far
        return self.args.near if a // GROUP == b // GROUP else self.args.socket

    def seen(self, writer, readers, at):
        """When each reader sees what the writer stored at this time: readers get the line one after the other."""
        return {r: at + self.move(writer, r) + i * self.args.busy for i, r in enumerate(readers)}

    def count(self, arrivals):
        """Threads increment one counter in the order of their arrival: (time of the last increment, its thread)."""
        free, owner = 0, None
        for at, who in sorted(arrivals):
            free = max(free, at) + (self.move(owner, who) if owner is not None else self.args.near)
            owner = who
        return free, owner

    def fork_join(self, in_groups):
        """ns from the caller's first store until the caller sees that all threads are done, without any work."""
        if self.n == 1:
            return 0
        groups = [list(range(g, min(g + GROUP, self.n))) for g in range(0, self.n, GROUP)] if in_groups else [list(range(self.n))]
        counts, at = [], 0
        for group in groups:  # stores overlap; each waits for its line
            at += self.args.busy
            workers = [t for t in group if t != 0]
            if workers:
                counts.append(self.count([(when, t) for t, when in self.seen(0, workers, at).items()]))
        end, last = self.count(counts) if in_groups else counts[0]
        return end + self.move(last, 0)


def imbalance(n_panels, n_threads, rng):
    """Time until the last panel is done, relative to that of a perfect balance: threads steal panels from others."""
    shares = [[n_panels * t // n_threads, n_panels * (t + 1) // n_threads] for t in range(n_threads)]
    free = [(0.0, t) for t in range(n_threads)]
    end = total = 0.0
    while free:
        at, thread = heapq.heappop(free)
        for i in range(n_threads):
            share = shares[(thread + i) % n_threads]
            left = share[1] - share[0]
            if left > 0:
                piece = max(1, min(PIECE, left // 4))
                share[0] += piece
                took = sum(max(0.5, rng.gauss(1, 0.02)) for _ in range(piece))
                total += took
                end = max(end, at + took)
                heapq.heappush(free, (at + took, thread))
                break
    return end * n_threads / total


def main():
    _, usage, description = __doc__.split("\n\n", 2)
    parser = argparse.ArgumentParser(usage=usage.strip(), description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("sockets", 2), ("cores", 64), ("gbps", 300), ("near", 25), ("socket", 90), ("far", 150), ("busy", 20)):
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    rng = random.Random(RANDOM)
    most = args.sockets * args.cores
    print(f"{'threads':>7} {'one counter':>12} {'groups':>9}   " + "   ".join(f"{name + ': layer, forks, sharing, of memory':>50}" for name in SHAPES))
    n = 2
    while n <= most:
        machine = Machine(args, n)
        flat, groups = machine.fork_join(False) / 1e3, machine.fork_join(True) / 1e3
        cells = []
        for matrices, n_forks in SHAPES.values():
            gbps = args.gbps * args.sockets * min(1, 3 * n / most)  # a third of the cores saturates the memory
            ideal = sum(rows * columns * BYTES for rows, columns in matrices) / gbps / 1e3
            shared = sum(rows * columns * BYTES / gbps / 1e3 * imbalance(rows // PANEL_ROWS, n, rng) for rows, columns in matrices)
            whole = shared + n_forks * groups
            cells.append(f"{whole:7.0f} us {100 * n_forks * groups / whole:6.1f} % {100 * (shared - ideal) / whole:6.1f} % {100 * ideal / whole:6.0f} %")
        print(f"{n:7} {flat:9.1f} us {groups:6.1f} us   " + "   ".join(f"{cell:>50}" for cell in cells))
        n *= 2


if __name__ == "__main__":
    main()
