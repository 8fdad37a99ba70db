//! The story with redis-rs and tokio-postgres.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisResult, cmd};
use serde_json::json;
use tokio_postgres::{Client, Error, NoTls};

const LOCK: &str = "lock:counter";
const SHORT_MS: u64 = 300;
const LONG_MS: u64 = 60_000;
const WAIT_MS: u64 = 10_000;

/// One worker: its own connections, and a new owner for each acquisition.
struct Worker {
    name: &'static str,
    redis: MultiplexedConnection,
    db: Client,
    owner: String,
}

impl Worker {
    async fn connect(name: &'static str) -> Result<Self, Box<dyn std::error::Error>> {
        // redis-rs gives up a reply after half a second by default: less than a wait in the queue may take.
        let patient = AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_millis(WAIT_MS + 5_000)));
        let redis = redis::Client::open(std::env::var("REDIS_URL")?)?
            .get_multiplexed_async_connection_with_config(&patient)
            .await?;
        let (db, connection) = tokio_postgres::connect(&std::env::var("DATABASE_URL")?, NoTls).await?;
        tokio::spawn(connection);
        Ok(Self { name, redis, db, owner: String::new() })
    }

    /// The fence; `None`: busy.
    async fn acquire(&mut self, ttl_ms: u64, wait_ms: Option<u64>) -> RedisResult<Option<i64>> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        self.owner = format!("{}-{}-{now}", self.name, std::process::id());
        let mut acquire = cmd("FENCELOCK.ACQUIRE");
        acquire.arg(LOCK).arg(&self.owner).arg(ttl_ms).arg("RETRY");
        if let Some(wait_ms) = wait_ms {
            acquire.arg("WAIT").arg(wait_ms);
        }
        acquire.query_async(&mut self.redis).await
    }

    async fn release(&mut self, fence: i64) -> RedisResult<bool> {
        cmd("FENCELOCK.RELEASE").arg(LOCK).arg(&self.owner).arg("FENCE").arg(fence).query_async(&mut self.redis).await
    }

    /// Why the hold ended; `None`: it has not, so far.
    async fn await_end(&mut self, fence: i64, ms: u64) -> RedisResult<Option<String>> {
        cmd("FENCELOCK.AWAIT").arg(LOCK).arg(fence).arg(ms).query_async(&mut self.redis).await
    }

    /// The counter; `None`: stale. The server determines each parameter's type: a key says its own.
    async fn claim(&self, fence: i64) -> Result<Option<i32>, Error> {
        let claim = "SELECT value FROM fenced_claim(NULL::counters, $1::int, $2)";
        Ok(self.db.query_opt(claim, &[&1, &fence]).await?.map(|row| row.get(0)))
    }

    /// Whether it was written; false: stale.
    async fn update(&self, fence: i64, value: i32) -> Result<bool, Error> {
        let update = "SELECT fenced_update('counters', $1::int, $2, $3)";
        Ok(self.db.query_one(update, &[&1, &fence, &json!({ "value": value })]).await?.get(0))
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (mut a, mut b) = (Worker::connect("A").await?, Worker::connect("B").await?);
    let a_fence = a.acquire(SHORT_MS, None).await?.ok_or("busy")?;
    let a_read = a.claim(a_fence).await?.ok_or("stale")?;

    // A stalls. B waits in the server's queue until A's lease has expired.
    let b_fence = b.acquire(LONG_MS, Some(WAIT_MS)).await?.ok_or("busy")?;
    let b_read = b.claim(b_fence).await?.ok_or("stale")?;

    // A wakes up and goes on: refused at the row, and its release finds nothing.
    assert!(!a.update(a_fence, a_read + 1).await?);
    assert_eq!(a.claim(a_fence).await?, None);
    assert!(!a.release(a_fence).await?);

    assert!(b.update(b_fence, b_read + 1).await?);
    assert!(b.release(b_fence).await?);

    // A does it again, with a new lease.
    let again = a.acquire(LONG_MS, None).await?.ok_or("busy")?;
    assert_eq!(b.acquire(LONG_MS, None).await?, None);
    let unclaimed = a.update(again, 9).await.expect_err("a write before the claim");
    assert_eq!(unclaimed.code().map(|state| state.code()), Some("LF002"));
    let a_read = a.claim(again).await?.ok_or("stale")?;
    assert!(a.update(again, a_read + 1).await?);
    assert_eq!(b.await_end(again, 50).await?, None);
    assert!(a.release(again).await?);
    assert_eq!(b.await_end(again, WAIT_MS).await?.as_deref(), Some("ended"));

    let value: i32 = a.db.query_one("SELECT value FROM counters WHERE id = 1", &[]).await?.get(0);
    println!("{a_fence} {b_fence} {again} {value}");
    Ok(())
}
