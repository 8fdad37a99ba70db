<?php
// The story with phpredis and PDO.

declare(strict_types=1);

const LOCK = 'lock:counter';
const SHORT_MS = 300;
const LONG_MS = 60_000;
const WAIT_MS = 10_000;

final class Worker
{
    private Redis $redis;
    public PDO $db;
    private string $owner = '';

    public function __construct()
    {
        $url = parse_url(getenv('REDIS_URL'));
        $this->redis = new Redis();
        // The last but one: seconds to wait for a reply, more than a wait in the queue may take.
        $this->redis->connect($url['host'], $url['port'], 5.0, null, 0, WAIT_MS / 1000 + 5);
        $url = parse_url(getenv('DATABASE_URL'));
        $name = ltrim($url['path'], '/');
        $this->db = new PDO("pgsql:host={$url['host']};port={$url['port']};dbname={$name}", $url['user'], $url['pass'] ?? null);
    }

    /** The fence; false: busy (phpredis turns null into false). */
    public function acquire(int $ttlMs, string|int ...$options): int|false
    {
        $this->owner = bin2hex(random_bytes(16));
        return $this->redis->rawCommand('FENCELOCK.ACQUIRE', LOCK, $this->owner, $ttlMs, ...$options, ...['RETRY']);
    }

    public function release(int $fence): int
    {
        return $this->redis->rawCommand('FENCELOCK.RELEASE', LOCK, $this->owner, 'FENCE', $fence);
    }

    /** Why the hold ended; false: it has not, so far. */
    public function awaitEnd(int $fence, int $ms): string|false
    {
        return $this->redis->rawCommand('FENCELOCK.AWAIT', LOCK, $fence, $ms);
    }

    /** The row; false: stale. */
    public function claim(int $fence): array|false
    {
        $claim = $this->db->prepare('SELECT * FROM fenced_claim(NULL::counters, ?, ?)');
        $claim->execute([1, $fence]);
        return $claim->fetch(PDO::FETCH_ASSOC);
    }

    /** Whether it was written; false: stale. */
    public function update(int $fence, int $value): bool
    {
        $update = $this->db->prepare("SELECT fenced_update('counters', ?, ?, ?)");
        $update->execute([1, $fence, json_encode(['value' => $value])]);
        return $update->fetchColumn();
    }
}

function expect(mixed $seen, mixed $expected): void
{
    if ($seen !== $expected) {
        throw new Exception('expected ' . var_export($expected, true) . ', saw ' . var_export($seen, true));
    }
}

$a = new Worker();
$b = new Worker();
$aFence = $a->acquire(SHORT_MS);
$aRow = $a->claim($aFence);

// A stalls. B waits in the server's queue until A's lease has expired.
$bFence = $b->acquire(LONG_MS, 'WAIT', WAIT_MS);
$bRow = $b->claim($bFence);

// A wakes up and goes on: refused at the row, and its release finds nothing.
expect($a->update($aFence, $aRow['value'] + 1), false);
expect($a->claim($aFence), false);
expect($a->release($aFence), 0);

expect($b->update($bFence, $bRow['value'] + 1), true);
expect($b->release($bFence), 1);

// A does it again, with a new lease.
$again = $a->acquire(LONG_MS);
expect($b->acquire(LONG_MS), false);
try {
    $a->update($again, 9);
    throw new Exception('a write before the claim');
} catch (PDOException $error) {
    expect($error->getCode(), 'LF002');
}
expect($a->update($again, $a->claim($again)['value'] + 1), true);
expect($b->awaitEnd($again, 50), false);
expect($a->release($again), 1);
expect($b->awaitEnd($again, WAIT_MS), 'ended');

$value = $a->db->query('SELECT value FROM counters WHERE id = 1')->fetchColumn();
echo "$aFence $bFence $again $value\n";
