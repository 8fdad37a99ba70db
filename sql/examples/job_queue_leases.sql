-- A table of jobs on leases of the extension, without Redis: the lock of a job says who works on it, so no column does.
--
-- Fits where a job takes longer than a transaction should, and its worker can stall or die: its lease expires, and the next
-- worker takes the job. job_queue.sql does the same with a time in the row; here a worker can also wait for a job of its
-- own, extend by one call, and be seen in the view fencelocks.
--
-- Picking is one statement in autocommit, and so is completing. A worker calls with a random owner for each job.
--
-- A line `-- =>` is what psql (-qAt) prints for the statement before it.

CREATE TABLE jobs (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    payload jsonb NOT NULL,
    is_done boolean NOT NULL DEFAULT false,
    result jsonb,
    fence bigint NOT NULL DEFAULT 0
);
CREATE INDEX jobs_open ON jobs (id) WHERE NOT is_done;

INSERT INTO jobs (payload) VALUES ('{"mail": "ann@example.org"}'), ('{"mail": "bob@example.org"}');

-- The first open job whose lock is free, claimed: the statement tries one lock after the other, and stops at the first
-- that it gets. A job that was completed meanwhile is seen by the claim: leave it, and release.
PREPARE pick (text) AS
SELECT c.id, c.is_done, f.mine
FROM (SELECT id FROM jobs WHERE NOT is_done ORDER BY id OFFSET 0) AS open,
    LATERAL fencelock_acquire('job:' || open.id, $1, 30000) AS f(mine),
    LATERAL fenced_claim(NULL::jobs, open.id, f.mine) AS c
WHERE f.mine IS NOT NULL
LIMIT 1;

-- Completes a job and frees its lock at once. False: a newer worker has it.
PREPARE complete (bigint, bigint, jsonb, text) AS
SELECT fenced_update('jobs', $1, $2, jsonb_build_object('is_done', true, 'result', $3)),
    fencelock_release('job:' || $1, $4, $2);

-- Worker A picks the first job, B the second, and C finds none.
EXECUTE pick ('a-5f0e') \gset a_
\echo :a_id :a_is_done
-- => 1 f
EXECUTE pick ('b-91c2') \gset b_
\echo :b_id :b_is_done
-- => 2 f
EXECUTE pick ('c-07aa');
-- =>
SELECT lock, owner FROM fencelocks ORDER BY lock;
-- => job:1|a-5f0e
-- => job:2|b-91c2

-- B needs longer than it thought, and completes.
SELECT fencelock_extend('job:2', 'b-91c2', 60000, :b_mine);
-- => 60000
EXECUTE complete (2, :b_mine, '{"sent": "by B"}', 'b-91c2');
-- => t|t

-- A stalls past its lease (here an operator ends it), and C picks the job.
SELECT fencelock_free('job:1');
-- => t
EXECUTE pick ('c-6d31') \gset c_
\echo :c_id
-- => 1

-- A wakes up and completes: refused. C completes: done.
EXECUTE complete (1, :a_mine, '{"sent": "by A"}', 'a-5f0e');
-- => f|f
EXECUTE complete (1, :c_mine, '{"sent": "by C"}', 'c-6d31');
-- => t|t
SELECT id, result FROM jobs ORDER BY id;
-- => 1|{"sent": "by C"}
-- => 2|{"sent": "by B"}

-- Each job had a lock of its own: their rows can go.
SELECT fencelock_forget(9007199254740991);
-- => 2
