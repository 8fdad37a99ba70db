#!/bin/sh
# The story with redis-cli and psql.
set -eu

lock=lock:counter
short_ms=300
long_ms=60000

# Prints the reply: a number, or an empty line for null.
redis() {
    redis-cli -u "$REDIS_URL" "$@"
}

# Prints the value; no row is no line, an error is its SQLSTATE.
sql() {
    psql -X -q -t -A -v VERBOSITY=sqlstate -d "$DATABASE_URL" -c "$1" 2>&1
}

# acquire OWNER TTL-MS [OPTION...]: the fence; empty: busy.
acquire() {
    owner=$1 ttl_ms=$2
    shift 2
    redis FENCELOCK.ACQUIRE $lock "$owner" "$ttl_ms" RETRY "$@"
}

# await_end FENCE MS: why the hold ended; empty: it has not, so far.
await_end() {
    redis FENCELOCK.AWAIT $lock "$1" "$2"
}

# claim FENCE: the counter; empty: stale.
claim() {
    sql "SELECT value FROM fenced_claim(NULL::counters, 1, $1)"
}

# update FENCE VALUE: t: written; f: stale.
update() {
    sql "SELECT fenced_update('counters', 1, $1, '{\"value\": $2}')"
}

expect() {
    [ "$1" = "$2" ] || { echo "expected '$2', saw '$1'" >&2; exit 1; }
}

a_fence=$(acquire A-$$ $short_ms)
a_read=$(claim "$a_fence")

# A stalls. B waits in the server's queue until A's lease has expired.
b_fence=$(acquire B-$$ $long_ms WAIT 10000)
b_read=$(claim "$b_fence")

# A wakes up and goes on: refused at the row, and its release finds nothing.
expect "$(update "$a_fence" $((a_read + 1)))" f
expect "$(claim "$a_fence")" ''
expect "$(redis FENCELOCK.RELEASE $lock A-$$ FENCE "$a_fence")" 0

expect "$(update "$b_fence" $((b_read + 1)))" t
expect "$(redis FENCELOCK.RELEASE $lock B-$$ FENCE "$b_fence")" 1

# A does it again, with a new lease.
again=$(acquire A-$$-again $long_ms)
expect "$(acquire B-$$-busy $long_ms)" ''
expect "$(update "$again" 9 || true)" 'ERROR:  LF002'
expect "$(update "$again" $(($(claim "$again") + 1)))" t
expect "$(await_end "$again" 50)" ''
expect "$(redis FENCELOCK.RELEASE $lock A-$$-again FENCE "$again")" 1
expect "$(await_end "$again" 10000)" ended

echo "$a_fence $b_fence $again $(sql 'SELECT value FROM counters WHERE id = 1')"
