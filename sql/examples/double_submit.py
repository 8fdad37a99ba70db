"""FastAPI: a form that is sent twice makes one order, and both get the same answer.

    CREATE TABLE submits (key text PRIMARY KEY, answer jsonb, fence bigint NOT NULL DEFAULT 0);
    CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, item text NOT NULL, payment text NOT NULL);

The browser sends a key with each form (a UUID in a hidden field, as the header Idempotency-Key). The second request waits
in the queue of the first one's lock and finds its answer. A restart of PostgreSQL in between is a 409 as well (LF006, for a
claim from before it), and the form is sent again. Where the work is this one transaction and nothing else, you
need no lock: the unique key of `submits` does. The lock pays when the work calls somebody else first, as `charge` does.
"""

import json
from typing import Annotated

import asyncpg
from async_lock import LockBusy, LockLost, fenced_lock
from fastapi import FastAPI, Header, HTTPException
from pydantic import BaseModel

CLAIM = "SELECT answer FROM fenced_claim_or_insert(NULL::submits, $1::text, $2, '{}')"
ANSWER = "SELECT fenced_update('submits', $1::text, $2, $3)"

AGAIN = HTTPException(409, "this order is being worked on: send it again with the same key")


class Order(BaseModel):
    item: str


def make_app(r, pool, charge):
    """`r`: a redis.asyncio client, `pool`: a pool of asyncpg, `charge(key, fence, order)`: takes the money, once for each key.

    The key names the operation and is the same for every holder: a key with the fence in it charges again for a stalled holder's
    successor. The fence travels beside it, for a service that can refuse an older one.
    """
    app = FastAPI()

    @app.post("/orders")
    async def submit(order: Order, idempotency_key: Annotated[str, Header()]):
        try:
            async with fenced_lock(r, f"submit:{idempotency_key}") as fence:
                return await once(idempotency_key, fence, order)
        except (LockBusy, LockLost):
            raise AGAIN from None
        except asyncpg.PostgresError as error:
            raise (AGAIN if error.sqlstate == "LF006" else error) from None

    async def once(key, fence, order):
        async with pool.acquire() as db:
            claimed = await db.fetchrow(CLAIM, key, fence)
            if claimed is None:
                raise LockLost(key)
            if claimed["answer"] is not None:
                return json.loads(claimed["answer"])
            payment = await charge(key, fence, order)
            async with db.transaction():
                number = await db.fetchval("INSERT INTO orders (item, payment) VALUES ($1, $2) RETURNING id", order.item, payment)
                answer = {"order": number}
                if not await db.fetchval(ANSWER, key, fence, json.dumps({"answer": answer})):
                    raise LockLost(key)  # rolls the order back
            return answer

    return app
