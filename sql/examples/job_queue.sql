-- A table of jobs: workers pick with SKIP LOCKED, and only the newest holder of a job completes it.
--
-- Each pick issues the next fence of its job under the lock of the row, so this needs no Redis. A worker that stalls
-- past its time comes back with an older fence and is refused. Where a lock in Redis guards the job, use the fence of
-- that lock instead, and never both on one table.
--
-- A fence is at least the time in microseconds. A fence from a sequence, or fence + 1 alone, would be issued twice where
-- PostgreSQL loses the last pick (a fail-over to an asynchronous replica, a restore): then two workers complete one job.
--
-- What a worker relies on counts until PostgreSQL is started or promoted: then complete_job() claims the job again, and
-- completes it if it is as the worker left it.
--
-- A line `-- =>` is what psql (-qAt) prints for the statement before it.

CREATE TABLE jobs (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    payload jsonb NOT NULL,
    state text NOT NULL DEFAULT 'ready' CHECK (state IN ('ready', 'running', 'done')),
    run_until timestamptz,
    attempts int NOT NULL DEFAULT 0,
    result jsonb,
    fence bigint NOT NULL DEFAULT 0
);
CREATE INDEX jobs_open ON jobs (id) WHERE state <> 'done';

-- The first job that is ready, or whose worker has not come back in time; no row when there is none.
CREATE FUNCTION pick_job(how_long interval)
RETURNS SETOF jobs
LANGUAGE plpgsql
AS $$
DECLARE
    open jobs;
    next_fence bigint;
BEGIN
    SELECT * INTO open
    FROM jobs
    WHERE state = 'ready' OR (state = 'running' AND run_until < clock_timestamp())
    ORDER BY id
    LIMIT 1
    FOR UPDATE SKIP LOCKED;
    IF FOUND THEN
        next_fence := greatest(open.fence + 1, extract(epoch FROM clock_timestamp()) * 1000000);
        RETURN QUERY
        SELECT written.*
        FROM fenced_claim(NULL::jobs, open.id, next_fence) AS claimed,
            fenced_update_returning(NULL::jobs, claimed.id, next_fence, jsonb_build_object(
                'state', 'running',
                'run_until', clock_timestamp() + how_long,
                'attempts', claimed.attempts + 1
            )) AS written;
    END IF;
END
$$;

-- Completes a job under the fence that it was picked with. False: a newer worker has it, or it is done.
CREATE FUNCTION complete_job(job bigint, picked_with bigint, outcome jsonb)
RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    done CONSTANT jsonb := jsonb_build_object('state', 'done', 'result', outcome);
    again jobs;
BEGIN
    RETURN fenced_update('jobs', job, picked_with, done);
EXCEPTION
    WHEN SQLSTATE 'LF006' THEN
        SELECT * INTO again FROM fenced_claim(NULL::jobs, job, picked_with);
        RETURN FOUND AND again.state = 'running' AND fenced_update('jobs', job, picked_with, done);
END
$$;

INSERT INTO jobs (payload) VALUES ('{"mail": "ann@example.org"}');

-- Worker A picks the job for one second, and stalls. (\gset keeps the fence as :a_fence; a worker keeps it as a number.)
SELECT id AS a_id, attempts AS a_attempts, fence AS a_fence FROM pick_job('1 second') \gset
\echo :a_id :a_attempts
-- => 1 1
SELECT count(*) FROM pick_job('1 second');
-- => 0

-- Its time has passed. Worker B picks the job, and works.
SELECT pg_sleep(1.1);
-- =>
SELECT id AS b_id, attempts AS b_attempts, fence AS b_fence FROM pick_job('30 seconds') \gset
\echo :b_id :b_attempts
-- => 1 2

-- B needs longer than it thought.
SELECT fenced_update('jobs', 1, :b_fence, jsonb_build_object('run_until', clock_timestamp() + interval '60 seconds'));
-- => t

-- A wakes up and completes: refused. B completes: done. What else belongs to the completion goes into the same
-- transaction, after the answer is true.
SELECT complete_job(1, :a_fence, '{"sent": "by A"}');
-- => f
SELECT complete_job(1, :b_fence, '{"sent": "by B"}');
-- => t
SELECT state, result FROM jobs;
-- => done|{"sent": "by B"}
