-- A ledger whose version row is the guard: entries are only ever inserted, so no entry can carry a fence.
--
-- Every transaction that posts claims the ledger's row first. The claim locks it to the end of the transaction, so
-- postings come one after the other, and a stale holder inserts nothing. The first posting inserts that row. Where there is no
-- such row, or the transaction touches many tables, fenced_guard('ledger acme', fence) does the same by name.
--
-- A line `-- =>` is what psql (-qAt) prints for the statement before it.

CREATE TABLE ledgers (
    name text PRIMARY KEY,
    version bigint NOT NULL DEFAULT 0,
    balance numeric NOT NULL DEFAULT 0,
    fence bigint NOT NULL DEFAULT 0
);
CREATE TABLE entries (
    ledger text REFERENCES ledgers,
    version bigint,
    amount numeric NOT NULL,
    PRIMARY KEY (ledger, version)
);

-- Posts one entry and returns the new version; LF001 when a newer holder has claimed the ledger.
CREATE FUNCTION post(target text, amount numeric, fence bigint)
RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    claimed ledgers;
BEGIN
    SELECT * INTO claimed FROM fenced_claim_or_insert(NULL::ledgers, target, fence, '{}');
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'LF001',
            MESSAGE = format('fence %s is stale at ledger "%s"', fence, target);
    END IF;
    INSERT INTO entries VALUES (target, claimed.version + 1, amount);
    PERFORM fenced_update('ledgers', target, fence, jsonb_build_object(
        'version', claimed.version + 1,
        'balance', claimed.balance + amount
    ));
    RETURN claimed.version + 1;
END
$$;

-- Holder 41 posts twice; 42 takes over; 41 wakes up.
SELECT post('acme', 100, 41);
-- => 1
SELECT post('acme', -30, 41);
-- => 2
SELECT post('acme', 5.5, 42);
-- => 3
SELECT post('acme', 1000, 41);
-- => ERROR:  fence 41 is stale at ledger "acme"
SELECT version, amount FROM entries ORDER BY version;
-- => 1|100
-- => 2|-30
-- => 3|5.5
SELECT version, balance, fence FROM ledgers;
-- => 3|75.5|42
