# The story with redis-rb and pg.

require "json"
require "pg"
require "redis"
require "securerandom"

LOCK = "lock:counter"
SHORT_MS = 300
LONG_MS = 60_000
WAIT_MS = 10_000

class Worker
  attr_reader :db

  def initialize
    # redis-rb gives up a reply after 5 s unless told otherwise: less than a wait in the queue may take.
    @redis = Redis.new(url: ENV.fetch("REDIS_URL"), read_timeout: WAIT_MS / 1000 + 5)
    @db = PG.connect(ENV.fetch("DATABASE_URL"))
    @db.type_map_for_results = PG::BasicTypeMapForResults.new(@db)
  end

  # The fence; nil: busy. redis-rb sends a call again when the connection drops; RETRY makes that safe.
  def acquire(ttl_ms, *options)
    @owner = SecureRandom.uuid
    @redis.call("FENCELOCK.ACQUIRE", LOCK, @owner, ttl_ms, *options, "RETRY")
  end

  def release(fence)
    @redis.call("FENCELOCK.RELEASE", LOCK, @owner, "FENCE", fence)
  end

  # Why the hold ended; nil: it has not, so far.
  def await_end(fence, ms)
    @redis.call("FENCELOCK.AWAIT", LOCK, fence, ms)
  end

  # The row; nil: stale.
  def claim(fence)
    @db.exec_params("SELECT * FROM fenced_claim(NULL::counters, $1, $2)", [1, fence]).first
  end

  # Whether it was written; false: stale.
  def update(fence, value)
    @db.exec_params("SELECT fenced_update('counters', $1, $2, $3)", [1, fence, { value: value }.to_json]).getvalue(0, 0)
  end
end

def expect(seen, expected)
  raise "expected #{expected.inspect}, saw #{seen.inspect}" unless seen == expected
end

a, b = Worker.new, Worker.new
a_fence = a.acquire(SHORT_MS)
a_row = a.claim(a_fence)

# A stalls. B waits in the server's queue until A's lease has expired.
b_fence = b.acquire(LONG_MS, "WAIT", WAIT_MS)
b_row = b.claim(b_fence)

# A wakes up and goes on: refused at the row, and its release finds nothing.
expect a.update(a_fence, a_row["value"] + 1), false
expect a.claim(a_fence), nil
expect a.release(a_fence), 0

expect b.update(b_fence, b_row["value"] + 1), true
expect b.release(b_fence), 1

# A does it again, with a new lease.
again = a.acquire(LONG_MS)
expect b.acquire(LONG_MS), nil
begin
  a.update(again, 9)
  raise "a write before the claim"
rescue PG::Error => error
  expect error.result.error_field(PG::Result::PG_DIAG_SQLSTATE), "LF002"
end
expect a.update(again, a.claim(again)["value"] + 1), true
expect b.await_end(again, 50), nil
expect a.release(again), 1
expect b.await_end(again, WAIT_MS), "ended"

puts [a_fence, b_fence, again, a.db.exec("SELECT value FROM counters WHERE id = 1").getvalue(0, 0)].join(" ")
