"""Which writes were lost, and why: pure functions over the attempts of all workers.

Every write names the write whose value it read. From the final row that leads back, write by write, to the empty row: what
is on this line survived, every other accepted write is lost. It left the line at a write that two others had read, so two
workers read the same value and both wrote. Of the two, the one with the older fence wrote after the newer one had read:
had it written before, the newer one would have read that. Why it was so late is the explanation.
"""


# The lease is measured on the monotonic clock, the moments in the log on the other.
CLOCKS_S = 0.002


def explain(attempts, last_writer, troubles, lease_s, origin=0.0):
    """One loss for each branch off the surviving line: {"lost": ids, "cause", "text"}. Raises where no cause is found."""
    written = {one["me"]: one for one in attempts if one["accepted"]}
    # For every write of the surviving line, and the empty row, the one that came of it.
    child, me = {}, last_writer
    while me:
        child[written[me]["based_on"]] = me
        me = written[me]["based_on"]
    branches = {}
    for me in written.keys() - set(child.values()):
        top = me
        while written[top]["based_on"] not in child:
            top = written[top]["based_on"]
        branches.setdefault((child[written[top]["based_on"]], top), []).append(me)
    losses = [
        _explain(written[survivor], written[top], sorted(lost), troubles, lease_s, origin)
        for (survivor, top), lost in branches.items()
    ]
    return [loss for _, loss in sorted(losses, key=lambda one: one[0])]


def causes(losses):
    """How many writes were lost by each cause."""
    counts = {}
    for loss in losses:
        counts[loss["cause"]] = counts.get(loss["cause"], 0) + len(loss["lost"])
    return counts


def _explain(survivor, top, lost, troubles, lease_s, origin):
    older, newer = sorted((survivor, top), key=lambda one: one["fence"])
    cause, words = _why_late(older, troubles, lease_s)

    def at(moment):
        return f"{moment - origin:.3f}"

    basis = older["based_on"] or "nobody"
    text = (
        f"{older['me']} (fence {older['fence']}, granted at {at(older['granted'])} s) and {newer['me']} (fence"
        f" {newer['fence']}, granted at {at(newer['granted'])} s) both read what {basis} had written;"
        f" {older['me']} {words} and wrote at {at(older['wrote'])} s, {newer['me']} at {at(newer['wrote'])} s:"
        f" lost {', '.join(lost)}"
    )
    return older["wrote"], {"lost": lost, "cause": cause, "text": text}


def _why_late(older, troubles, lease_s):
    """The cause and its words. A write can only be this late if its lease had expired, or a failover forgot the lock."""
    if older["stalled"]:
        return "stall", f"stalled for {older['wrote'] - older['read']:.3f} s"
    for trouble in troubles:
        if "failover" in trouble and older["granted"] < trouble["failover"] < older["wrote"]:
            return "failover", "held the lock that the failover forgot"
        if trouble.get("pid") == older["pid"] and older["granted"] < trouble["to"] and trouble["from"] < older["wrote"]:
            return "pause", f"was frozen for {trouble['to'] - trouble['from']:.3f} s"
    held_s = older["wrote"] - older["granted"]
    if held_s >= lease_s - CLOCKS_S:
        return "slow", f"took {held_s:.3f} s on a busy machine"
    raise AssertionError(f"nothing explains how {older} could write that late")
