"""An object store as the protected resource: If-Match refuses the stale holder, and the fence travels in the object.

    claimed = claim(store, "reports/2026.json", fence)
    if claimed is not None:                                # None: a newer holder has claimed it
        written = write(store, claimed, {"total": 12})     # None: the same

Any store with conditional writes will do (S3, GCS, Azure and their like). Two things matter:

- Claim first: the claim writes the object anew with the fence in it, so that whoever read it before has an old ETag.
- The fence lies in the body. Stores make the ETag of the body alone; a claim that only changed metadata would leave the ETag
  as it was, and the stale holder's If-Match would match.

`store` is an httpx.Client whose base_url is the bucket. An object that the claim finds is JSON of our own form.
"""

import json
from dataclasses import dataclass


@dataclass
class Claimed:
    """An object as this holder has claimed it."""

    path: str
    fence: int
    etag: str
    data: object


def claim(store, path, fence):
    """The object, stamped with the fence; None: stale. An object that is not there is made, with no data."""
    while True:
        found = store.get(path)
        if found.status_code == 404:
            stored, condition = {"fence": 0, "data": None}, {"If-None-Match": "*"}
        else:
            found.raise_for_status()
            stored, condition = found.json(), {"If-Match": found.headers["ETag"]}
        if stored["fence"] > fence:
            return None
        etag = _put(store, path, fence, stored["data"], condition)
        if etag is not None:
            return Claimed(path, fence, etag, stored["data"])
        # Somebody was faster. Look who it was.


def write(store, claimed, data):
    """The object as it is now, to go on with; None: stale, a newer holder has claimed it."""
    etag = _put(store, claimed.path, claimed.fence, data, {"If-Match": claimed.etag})
    return None if etag is None else Claimed(claimed.path, claimed.fence, etag, data)


def _put(store, path, fence, data, condition):
    """The new ETag, or None: the object is not the one that the condition names."""
    done = store.put(path, content=json.dumps({"fence": fence, "data": data}), headers=condition)
    if done.status_code in (409, 412):
        return None
    done.raise_for_status()
    return done.headers["ETag"]
