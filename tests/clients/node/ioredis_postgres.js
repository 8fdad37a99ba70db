// The story with ioredis and postgres.js, with fences as BigInt in SQL.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { Redis } from "ioredis";
import postgres from "postgres";

const LOCK = "lock:counter";
const SHORT_MS = 300;
const LONG_MS = 60_000;

class Worker {
  // A call that waits holds up every other on its connection: each worker has its own.
  constructor() {
    this.redis = new Redis(process.env.REDIS_URL);
    this.sql = postgres(process.env.DATABASE_URL, { max: 1, types: { bigint: postgres.BigInt } });
  }

  async close() {
    this.redis.disconnect();
    await this.sql.end();
  }

  // The fence; null: busy. ioredis sends a call again when the connection drops, and RETRY makes that safe.
  acquire(ttlMs, ...options) {
    this.owner = randomUUID();
    return this.redis.call("FENCELOCK.ACQUIRE", LOCK, this.owner, ttlMs, ...options, "RETRY");
  }

  release(fence) {
    return this.redis.call("FENCELOCK.RELEASE", LOCK, this.owner, "FENCE", fence);
  }

  // Why the hold ended; null: it has not, so far.
  awaitEnd(fence, ms) {
    return this.redis.call("FENCELOCK.AWAIT", LOCK, fence, ms);
  }

  // The row; undefined: stale.
  async claim(fence) {
    const [row] = await this.sql`SELECT * FROM fenced_claim(NULL::counters, ${1}::int, ${fence})`;
    return row;
  }

  // Whether it was written; false: stale.
  async update(fence, value) {
    const patch = this.sql.json({ value });
    const [row] = await this.sql`SELECT fenced_update('counters', ${1}::int, ${fence}, ${patch})`;
    return row.fenced_update;
  }
}

const a = new Worker();
const b = new Worker();
const aFence = await a.acquire(SHORT_MS);
assert(Number.isSafeInteger(aFence));
const aRow = await a.claim(aFence);
assert.equal(aRow.fence, BigInt(aFence));

// A stalls. B waits in the server's queue until A's lease has expired.
const bFence = await b.acquire(LONG_MS, "WAIT", 10_000);
const bRow = await b.claim(bFence);

// A wakes up and goes on: refused at the row, and its release finds nothing.
assert.equal(await a.update(aFence, aRow.value + 1), false);
assert.equal(await a.claim(aFence), undefined);
assert.equal(await a.release(aFence), 0);

assert.equal(await b.update(bRow.fence, bRow.value + 1), true);
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

const [{ value }] = await a.sql`SELECT value FROM counters WHERE id = 1`;
console.log(aFence, bFence, again, value);
await Promise.all([a.close(), b.close()]);
