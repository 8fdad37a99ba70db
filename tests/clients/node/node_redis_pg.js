// The story with node-redis and pg. A fence is below 2^53, so a number holds it exactly.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import pg from "pg";
import { createClient } from "redis";

const LOCK = "lock:counter";
const SHORT_MS = 300;
const LONG_MS = 60_000;

// pg gives a bigint as a string, because most are not safe in a number. Fences are.
pg.types.setTypeParser(pg.types.builtins.INT8, Number);

class Worker {
  // A call that waits holds up every other on its connection: each worker has its own.
  async connect() {
    this.redis = createClient({ url: process.env.REDIS_URL });
    // Without a listener a dropped connection ends the process.
    this.redis.on("error", (error) => console.error(error.message));
    this.db = new pg.Client({ connectionString: process.env.DATABASE_URL });
    await Promise.all([this.redis.connect(), this.db.connect()]);
    return this;
  }

  async close() {
    this.redis.destroy();
    await this.db.end();
  }

  // The fence; null: busy. node-redis takes strings alone.
  acquire(ttlMs, ...options) {
    this.owner = randomUUID();
    return this.redis.sendCommand(["FENCELOCK.ACQUIRE", LOCK, this.owner, String(ttlMs), ...options, "RETRY"]);
  }

  release(fence) {
    return this.redis.sendCommand(["FENCELOCK.RELEASE", LOCK, this.owner, "FENCE", String(fence)]);
  }

  // Why the hold ended; null: it has not, so far.
  awaitEnd(fence, ms) {
    return this.redis.sendCommand(["FENCELOCK.AWAIT", LOCK, String(fence), String(ms)]);
  }

  // The row; undefined: stale.
  async claim(fence) {
    const { rows } = await this.db.query("SELECT * FROM fenced_claim(NULL::counters, $1, $2)", [1, fence]);
    return rows[0];
  }

  // Whether it was written; false: stale.
  async update(fence, value) {
    const { rows } = await this.db.query("SELECT fenced_update('counters', $1, $2, $3)", [1, fence, { value }]);
    return rows[0].fenced_update;
  }
}

// The verdicts on counter 1, under its fence, and on one that is not there. pg makes arrays of the server of lists.
async function verdicts(worker, fence, value) {
  const patches = JSON.stringify([{ value }, { value }]);
  const { rows } = await worker.db.query("SELECT * FROM fenced_update_many('counters', $1, $2, $3)", [[1, 2], [fence, fence], patches]);
  return rows.map((row) => row.verdict);
}

const a = await new Worker().connect();
const b = await new Worker().connect();
const aFence = await a.acquire(SHORT_MS);
assert(Number.isSafeInteger(aFence));
const aRow = await a.claim(aFence);
assert.equal(aRow.fence, aFence);

// A stalls. B waits in the server's queue until A's lease has expired.
const bFence = await b.acquire(LONG_MS, "WAIT", "10000");
const bRow = await b.claim(bFence);

// A wakes up and goes on: refused at the row, and its release finds nothing.
assert.equal(await a.update(aFence, aRow.value + 1), false);
assert.equal(await a.claim(aFence), undefined);
assert.equal(await a.release(aFence), 0);

assert.equal(await b.update(bFence, bRow.value + 1), true);
assert.deepEqual(await verdicts(b, bFence, bRow.value + 1), ["written", "missing"]);
assert.deepEqual(await verdicts(a, aFence, 9), ["stale", "missing"]);
assert.equal(await b.release(bFence), 1);

// A does it again, with a new lease.
const again = await a.acquire(LONG_MS);
assert.equal(await b.acquire(LONG_MS), null);
await assert.rejects(a.update(again, 9), { code: "LF002" });
assert.equal(await a.update(again, (await a.claim(again)).value + 1), true);
assert.equal(await b.awaitEnd(again, 50), null);
const awaited = b.awaitEnd(again, 10_000);
assert.equal(await a.release(again), 1);
// If it came to the server after the release, it gets no reason.
assert(["released", "ended"].includes(await awaited));

const { rows } = await a.db.query("SELECT value FROM counters WHERE id = 1");
console.log(aFence, bFence, again, rows[0].value);
await Promise.all([a.close(), b.close()]);
