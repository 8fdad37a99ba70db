// The story with redigo and pgx.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/jackc/pgconn"
	"github.com/jackc/pgx/v4"
)

const (
	lock    = "lock:counter"
	shortMs = 300
	longMs  = 60_000
	waitMs  = 10_000
)

// A worker has its own connections, and a new owner for each acquisition.
type worker struct {
	name  string
	redis redis.Conn
	db    *pgx.Conn
	owner string
}

func connect(name string) *worker {
	// Without a time-out redigo waits for a reply for ever; with one it must be longer than a wait in the queue.
	patient := redis.DialReadTimeout((waitMs + 5_000) * time.Millisecond)
	toRedis, err := redis.DialURL(os.Getenv("REDIS_URL"), patient)
	must(err)
	db, err := pgx.Connect(context.Background(), os.Getenv("DATABASE_URL"))
	must(err)
	return &worker{name: name, redis: toRedis, db: db}
}

// The fence; redis.ErrNil: busy.
func (w *worker) acquire(ttlMs int, options ...interface{}) (int64, error) {
	w.owner = fmt.Sprintf("%s-%d-%d", w.name, os.Getpid(), time.Now().UnixNano())
	arguments := append([]interface{}{lock, w.owner, ttlMs, "RETRY"}, options...)
	return redis.Int64(w.redis.Do("FENCELOCK.ACQUIRE", arguments...))
}

func (w *worker) release(fence int64) bool {
	released, err := redis.Bool(w.redis.Do("FENCELOCK.RELEASE", lock, w.owner, "FENCE", fence))
	must(err)
	return released
}

// Why the hold ended; redis.ErrNil: it has not, so far.
func (w *worker) awaitEnd(fence int64, ms int) (string, error) {
	return redis.String(w.redis.Do("FENCELOCK.AWAIT", lock, fence, ms))
}

// The counter; pgx.ErrNoRows: stale. The server tells each parameter's type: a key says its own.
func (w *worker) claim(fence int64) (value int, err error) {
	claim := "SELECT value FROM fenced_claim(NULL::counters, $1::int, $2)"
	err = w.db.QueryRow(context.Background(), claim, 1, fence).Scan(&value)
	return
}

// Whether it was written; false: stale.
func (w *worker) update(fence int64, value int) (written bool, err error) {
	update := "SELECT fenced_update('counters', $1::int, $2, $3)"
	err = w.db.QueryRow(context.Background(), update, 1, fence, map[string]int{"value": value}).Scan(&written)
	return
}

func main() {
	a, b := connect("A"), connect("B")
	aFence, err := a.acquire(shortMs)
	must(err)
	aRead, err := a.claim(aFence)
	must(err)

	// A stalls. B waits in the server's queue until A's lease has expired.
	bFence, err := b.acquire(longMs, "WAIT", waitMs)
	must(err)
	bRead, err := b.claim(bFence)
	must(err)

	// A wakes up and goes on: refused at the row, and its release finds nothing.
	written, err := a.update(aFence, aRead+1)
	must(err)
	expect(written, false)
	_, err = a.claim(aFence)
	expect(errors.Is(err, pgx.ErrNoRows), true)
	expect(a.release(aFence), false)

	written, err = b.update(bFence, bRead+1)
	must(err)
	expect(written, true)
	expect(b.release(bFence), true)

	// A does it again, with a new lease.
	again, err := a.acquire(longMs)
	must(err)
	_, err = b.acquire(longMs)
	expect(errors.Is(err, redis.ErrNil), true)
	_, err = a.update(again, 9)
	var refused *pgconn.PgError
	expect(errors.As(err, &refused), true)
	expect(refused.Code, "LF002")
	aRead, err = a.claim(again)
	must(err)
	written, err = a.update(again, aRead+1)
	must(err)
	expect(written, true)
	_, err = b.awaitEnd(again, 50)
	expect(errors.Is(err, redis.ErrNil), true)
	expect(a.release(again), true)
	ending, err := b.awaitEnd(again, waitMs)
	must(err)
	expect(ending, "ended")

	var value int
	must(a.db.QueryRow(context.Background(), "SELECT value FROM counters WHERE id = 1").Scan(&value))
	fmt.Println(aFence, bFence, again, value)
}

func expect(seen, expected interface{}) {
	if seen != expected {
		panic(fmt.Sprintf("expected %v, saw %v", expected, seen))
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
