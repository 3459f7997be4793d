"""What docs/evaluation.md says before its tables."""

from __future__ import annotations

#: What is left out, what a server does, and what tables show instead.
NOT_MODELLED = (
    (
        "the time of verifying pages: xxh3 on the CPU, digests on the GPU",
        "every page, before it is promised or beside its copy",
        "loads that are a little too fast",
    ),
    (
        "reads of lent memory into host memory page by page, each waited for on one thread",
        '"swift-peer" does one after the other',
        "one after the other, at the link's full bandwidth",
    ),
    (
        "stores from one GPU to another",
        "from outgoing memory, beside the copy to host memory",
        "all through host memory",
    ),
    (
        "copies from landing memory to the KV pool",
        "within the device, beside the forward",
        "as if they took no time",
    ),
    (
        "copies between a device and host memory, both ways at once",
        "they share PCIe",
        "each way with a link to itself",
    ),
    (
        "PCIe shared between GPUs, the donor's side of it, both directions at once",
        "one root complex for several GPUs",
        "every GPU with a link of its own",
    ),
    (
        "cached prefixes of donors",
        "those that its requests use are kept from lending",
        "donors without any",
    ),
    (
        "decoding beside prefill, batches of several requests in one forward",
        "shares the device",
        "a device that only computes prompts",
    ),
    (
        "layer-wise restores but in `cacheflow-crossover`",
        "chosen where they are faster",
        "token-wise ones",
    ),
    (
        "costs that are learnt, and drift, but where a stack serves",
        "fitted to timed forwards, followed live",
        "fitted once, and true",
    ),
    (
        "ranks that wait for each other",
        "the least that all can do",
        "one rank",
    ),
    (
        "with SwiftKV: the second plan of attention in a forward, an early exit of answers' tokens",
        "once a forward of a prompt; if it is switched on",
        "neither",
    ),
    (
        "pages in fewer bytes on SSD (`ssd.codec`)",
        "0.7 of what is read, and the time of decoding",
        "pages as they are",
    ),
    (
        "errors, slow devices",
        "given up, recomputed",
        "none (`./swift torture` has them)",
    ),
)

HEAD = """# Evaluation by simulation

Every table here is printed by `./swift simulate NAME`, and this whole file by

    ./swift simulate all --markdown > docs/evaluation.md

`mooncake-…`, `remote-link`, `swiftcache-tail`, `swiftcache-route`, `swiftkv-first-token` and `swiftkv-tiers` let
requests come to **the tier stack that serves**: page table, host memory, stripe set, remote tier, restorer, planner,
leases and lenders, each with its threads, in virtual time. Modelled are devices (how long a GPU computes; what NVLink,
PCIe, networks and SSDs carry), SGLang's pool, tree and scheduler (`ops/base/simulated`, which the console's demo shows
too), and the engine of the remote tier. Pages are smaller than real ones, as is what is copied in a second, by the same
number.

`bound-…`, `cacheflow-…` and `swarm-scaling` compare ways to restore, most of which no server has. They run what decides
in a server (the planner, the two pointers, the batch's choice of what to load, the placement of stripe units) in a loop
of their own. Times are virtual and random numbers seeded, so the figures are the same on every machine. `mooncake-…`
needs the trace (`SWIFT_TIERS_TRACES`). Where a table shows what no server does, it says so: the paper's ways in
`cacheflow-crossover`, `swiftcache-tail` and `swiftcache-route`, the pipeline of `cacheflow-stages`,
Eq. 1-5 in `swiftcache-context`.

**What this can show, and what not.** It shows what schedules and sizes do on devices that behave as assumed. It does
not show how fast a real server is: data sheets are not devices, and nobody else's software is modelled beyond the one
decision that a table is about. Where each figure comes from: `hardware.py` and `models.py` of
`ops/base/devices`, `workloads.py` of `ops/lab/simulate`. GPUs are taken to reach 0.5 of their peak in matrix products
and 0.4 in attention, memory 0.8 of its bandwidth, and each forward to wait 5 ms for its host; `cacheflow-usage` shows
what other values would give, and `cacheflow-lengths` a wait of 1 ms. Where the paper's number is missing, its text has
none.

**Held.** A column of this name says by how much of the paper's number ours may lie outside of it, or that it is not
reproduced, and the notes say why. A test holds every one of these against the numbers.

**What the simulator does not model:**

| not modelled | in a server | so tables show |
|---|---|---|
""" + "".join(f"| {' | '.join(row)} |\n" for row in NOT_MODELLED)
