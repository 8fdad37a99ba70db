//! How a refusal is said: SQLSTATE, message, DETAIL and HINT.

use crate::errors::problems::deleted;
use crate::errors::{Refused, arrays, owners};
use crate::server::log::Report;
use fence::{Brought, Fence};
use pg_forms::{Identifier, text};

/// What to do about a stale fence. The sentence after it names the other cause: fences of two locks cannot be compared.
const TAKEN_OVER: &str = "Another holder has taken over. Roll back, and take the lock again.";

impl Refused {
    /// Raises this refusal as an error of the server.
    pub(crate) fn raise(self) -> ! {
        let code = self.code();
        self.report().raise(code)
    }

    fn report(self) -> Report {
        match self {
            Refused::NullArgument(name) => Report::new("22004", text!["argument \"", name, "\" must not be null"]),
            Refused::Fence(problem) => problem.report(),
            Refused::ChosenFence { argument, advice, problem } => problem.report_of_chosen(argument, advice),
            Refused::NotARowType { type_name } => Report::new("42809", text![type_name, " is not a table's row type"])
                .hint(text!["Pass a null of the table's row type, as in NULL::counters."]),
            Refused::Altered { table } => of_old_analysis()
                .detail(text![
                    "Table \"",
                    &table.name,
                    "\" has been altered since the query was prepared, or while its arguments were read."
                ])
                .about(table),
            Refused::NoType(oid) => of_old_analysis().detail(text![
                "Type with OID ",
                oid.to_u32(),
                " does not exist: its table has been dropped, or dropped and created again under its old name."
            ]),
            Refused::NoRelation(oid) => {
                Report::new("42P01", text!["relation with OID ", oid.to_u32(), " does not exist"])
                    .detail(text!["It has been dropped, or dropped and created again under its old name."])
            }
            Refused::NotATable { relation, kind, hint } => {
                Report::new("42809", text!["\"", &relation.name, "\" is ", kind])
                    .detail(text!["Only tables and partitioned tables can be fenced."])
                    .hint(text![hint])
                    .about(relation)
            }
            Refused::PrimaryKey { table, problem, hint } => {
                Report::new("55000", text!["table \"", &table.name, "\" ", problem])
                    .detail(text!["A fenced row is found by its table's primary key."])
                    .hint(text![hint])
                    .about(table)
            }
            Refused::NoFenceColumn { table, column } => Report::new(
                "42703",
                text!["table \"", &table.name, "\" has no fence column \"", &column, "\""],
            )
            .hint(text![
                "Add one (ALTER TABLE ... ADD COLUMN fence bigint NOT NULL DEFAULT 0), or name the column that ",
                "holds the fence with fence_column => '...'. The owner of a fence is passed behind that name.",
            ])
            .about(table)
            .column(column),
            Refused::FenceColumnType { table, column, type_name } => Report::new(
                "42804",
                text!["fence column \"", &column, "\" of table \"", &table.name, "\" has type ", type_name],
            )
            .detail(text!["A fence column is bigint, or integer for small fences."])
            .hint(text!["Change its type to bigint."])
            .about(table)
            .column(column),
            Refused::FenceColumnUse { table, column, problem } => {
                Report::new("55000", text!["fence column \"", &column, "\" of table \"", &table.name, "\" ", problem])
                    .hint(text!["Use a column of its own for the fence."])
                    .about(table)
                    .column(column)
            }
            Refused::OwnerColumn { table, column, problem } => problem.report(table, column),
            Refused::Key { table, columns, problem } => problem.report(table, columns),
            Refused::Keys { table, type_name } => {
                Report::new("42804", text!["argument \"keys\" must be an array of keys, not type ", type_name])
                    .hint(text!["Pass an array of keys, or a jsonb array of objects of the key's columns."])
                    .about(table)
            }
            Refused::Element { argument, place, problem } => arrays::element(argument, place, problem.report()),
            Refused::KeyTwice { table, key, places } => arrays::key_twice(table, key, places),
            Refused::Dimensions(argument) => arrays::dimensions(argument),
            Refused::ArrayLength { argument, given, keys } => arrays::length(argument, given, keys),
            Refused::Patch(problem) => problem.report(),
            Refused::PatchColumn { table, column, problem } => problem.report(table, column),
            Refused::NoRow { table, key, may_be_swapped } => {
                Report::new("P0002", text!["table \"", &table.name, "\" has no such row"])
                    .detail(text!["Key ", key, " does not exist, or a row-security policy hides it from the caller."])
                    .hint(if may_be_swapped {
                        text!["Key and fence may be swapped. Pass the key before the fence."]
                    } else {
                        text!["Insert the row, then claim it, or call fenced_claim_or_insert()."]
                    })
                    .about(table)
            }
            Refused::Unclaimed { table, key, stored, fence } => {
                Report::new("LF002", text!["fence ", fence, " has not claimed this row of table \"", &table.name, "\""])
                    .detail(text!["Key ", key, " has ", stored.or("an older fence", "the older fence "), "."])
                    .hint(text!["Claim the row with fence ", fence, ", read it again, then write."])
                    .about(table)
            }
            Refused::Duplicate { table, key, stored, fence } => owners::duplicate(table, key, stored, fence),
            Refused::Outlived { table, key, fence, since } => {
                let row = key.map_or_else(|| text!["The row"], |key| text!["Key ", key]);
                let message = text![
                    "fence ",
                    fence,
                    " claimed this row of table \"",
                    &table.name,
                    "\" in another life of the server"
                ];
                Report::new("LF006", message)
                    .detail(text![
                        row,
                        " was last written before ",
                        since,
                        ", since when claims count: the server was started, promoted or restored then, and can have lost ",
                        "what was written later.",
                    ])
                    .hint(text!["Claim all rows of the unit with fence ", fence, " and read them again, then write."])
                    .about(table)
            }
            Refused::Blocked { table, key, stored, fence, verb } => {
                Report::new("LF004", text![verb, " on table \"", &table.name, "\" was accepted but changed no row"])
                    .detail(text![
                        "Key ",
                        key,
                        " exists with ",
                        stored.or("another fence", "fence "),
                        ", which accepts fence ",
                        fence,
                        "."
                    ])
                    .hint(text![
                        "Check the table's row-security policies for ",
                        verb,
                        " and its BEFORE triggers: one of ",
                        "them keeps the caller from this row.",
                    ])
                    .about(table)
            }
            Refused::InsertBlocked { table, key } => Report::new(
                "LF004",
                text!["INSERT on table \"", &table.name, "\" was accepted but inserted no row"],
            )
            .detail(text!["Key ", key, " does not exist for the caller, and no new row has it."])
            .hint(text![
                "Check the table's row-security policies for SELECT and its BEFORE INSERT triggers: a policy hides ",
                "the row that has this key, or a trigger drops the new one.",
            ])
            .about(table),
            Refused::KeyChanged { table, key } => {
                Report::new("LF004", text!["a row was inserted into table \"", &table.name, "\" with another key"])
                    .detail(text!["Key ", key, " would not exist."])
                    .hint(text!["Check the table's BEFORE triggers: one of them sets a column of the primary key."])
                    .about(table)
            }
            Refused::KeyGenerated { table, key, column } => {
                Report::new("428C9", text!["the server gives out the keys of table \"", &table.name, "\""])
                    .detail(text![
                        "Key ",
                        key,
                        " does not exist, and key column \"",
                        &column,
                        "\" is GENERATED ALWAYS, so a new row cannot be given it."
                    ])
                    .hint(text!["Insert the row without its key, then claim it by the key that it got."])
                    .about(table)
                    .column(column)
            }
            Refused::PutBack { table, key, stored, fence } => Report::new(
                "LF004",
                text!["fence ", fence, " was written to table \"", &table.name, "\" but did not stay"],
            )
            .detail(text!["Key ", key, " would have been left with ", stored.or("another one", "fence "), "."])
            .hint(text!["Check the table's BEFORE triggers: one of them sets the fence column."])
            .about(table),
            Refused::OwnerPutBack { table, key, fence } => owners::put_back(table, key, fence),
            Refused::ManyRows { table, key, rows } => {
                Report::new("XX001", text![rows, " rows of table \"", &table.name, "\" have one primary key"])
                    .detail(text!["Key ", key, "."])
                    .hint(text!["The index of the primary key is damaged: REINDEX reports which rows."])
                    .about(table)
            }
            Refused::Server { function, code } => Report::new("XX000", text![function, " answered ", code]),
            Refused::StaleGuard { resource, stored, fence } => {
                let newer = stored.map_or_else(|| text!["a newer one"], |stored| text!["fence ", stored]);
                Report::new("LF001", text!["fence ", fence, " is stale at guard \"", &resource, "\""])
                    .detail(text!["The guard has admitted ", newer, "; this transaction has fence ", fence, "."])
                    .hint(text![TAKEN_OVER, " All transactions that call this guard must take the same lock."])
            }
            Refused::DuplicateGuard { resource, stored, fence } => owners::duplicate_at_guard(resource, stored, fence),
            Refused::OutlivedGuard { resource, fence, since } => Report::new(
                "LF006",
                text!["fence ", fence, " has read in another life of the server, at guard \"", &resource, "\""],
            )
            .detail(text![
                "Argument \"life\" is of another life than the one that counts since ",
                since,
                ": the server was started, promoted or restored then, and can have lost what was written later.",
            ])
            .hint(text!["Begin again: call the guard without a life, call fence_life(), read again, then write."]),
            Refused::NotALife { given } => {
                Report::new("22023", text!["argument \"life\" is \"", &given, "\", which fence_life() does not return"])
                    .hint(text!["Pass what fence_life() has returned, or '' to have no life asked."])
            }
            Refused::NoSharedLife => {
                Report::new("53200", text!["pg_fence has no shared memory for the life of the server"])
                    .detail(text!["Each session counts its own claims alone."])
                    .hint(text![
                        "Make room for dynamic shared memory, then connect again. A restart begins a new life, too."
                    ])
            }
            Refused::GuardLevel => {
                Report::new("0A000", text!["fenced_guard() works at isolation level READ COMMITTED only"])
                    .detail(text!["At the stricter levels later statements read what was there before the guard."])
                    .hint(text!["Begin the transaction with BEGIN ISOLATION LEVEL READ COMMITTED."])
            }
            Refused::NoGuard { resource } => {
                Report::new("P0002", text!["there is no guard \"", resource, "\""]).hint(text![
                    "Guards are made by fenced_guard(). Compare the name with those in fence_internals.guards."
                ])
            }
            Refused::ResourceLength { bytes, max } => {
                Report::new("22023", text!["resource name must have 1 to ", max, " bytes, not ", bytes])
                    .hint(text!["Use a short name, or a hash of a long one."])
            }
            Refused::Unfenced { table, write } => write.report(table),
            Refused::StaleRow { table, stored, fence } => {
                let newer = stored.map_or_else(|| text!["a newer one"], |stored| text!["fence ", stored]);
                Report::new("LF001", text!["fence ", fence, " is stale at a row of table \"", &table.name, "\""])
                    .detail(text!["The row has ", newer, "; the newest declared in this transaction is ", fence, "."])
                    .hint(text![TAKEN_OVER, " All writers of a row must take the same lock."])
                    .about(table)
            }
            Refused::UnclaimedRow { table, stored, fence } => {
                let older = stored.map_or_else(|| text!["an older one"], |stored| text!["the older fence ", stored]);
                Report::new("LF002", text!["fence ", fence, " has not claimed this row of table \"", &table.name, "\""])
                    .detail(text!["The row has ", older, "."])
                    .hint(text!["Claim the row with fence ", fence, ", read it again, then write."])
                    .about(table)
            }
            Refused::DuplicateRow { table, stored, fence } => owners::duplicate_in_use(table, stored, fence),
            Refused::NullableFence { table, column } => {
                let (fence, name) =
                    (Identifier(&column), text![Identifier(&table.schema), ".", Identifier(&table.name)]);
                let no_nulls = text!["UPDATE ", &name[..], " SET ", fence, " = 0 WHERE ", fence, " IS NULL; "];
                let no_more =
                    text!["ALTER TABLE ", name, " ALTER ", fence, " SET DEFAULT 0, ALTER ", fence, " SET NOT NULL"];
                Report::new("55000", text!["fence column \"", &column, "\" of table \"", &table.name, "\" can be null"])
                    .hint(text!["Run: ", no_nulls, no_more])
                    .about(table)
                    .column(column)
            }
            Refused::ProtectedByParent { table, parent } => {
                Report::new("55000", text!["table \"", &table.name, "\" is a partition of a protected table"])
                    .detail(text!["\"", &parent.name, "\" is protected, and all its partitions with it."])
                    .hint(text!["Name \"", &parent.name, "\"."])
                    .about(table)
            }
            Refused::NoSuchOption { name, other, value } => {
                Report::new("0A000", text!["fence_protect() does not support ", name, " => '", value, "'"]).hint(text![
                    "Leave the argument out, or pass 'plain' or '",
                    other,
                    "'."
                ])
            }
            Refused::StaleInsert { table, key, stored, fence } => {
                Report::new("LF001", text!["fence ", fence, " is stale for a new row of table \"", &table.name, "\""])
                    .detail(text![deleted(key, stored), "; the newest fence of this insert is ", fence, "."])
                    .hint(text![TAKEN_OVER, " The row stays deleted."])
                    .about(table)
            }
            Refused::Deletions { table, problem } => problem.report(table),
            Refused::NegativeAge { given } => {
                Report::new("22023", text!["argument \"older_than\" must not be negative, as ", given, " is"])
                    .hint(text!["Pass the age up to which deletions are kept, such as interval '30 days'."])
            }
            Refused::ManyInUse { max } => {
                Report::new("54000", text!["too many fences in use: at most ", max, " per transaction"])
                    .hint(text!["Use a transaction for each part of the work."])
            }
            Refused::Version { library, sql } => Report::new(
                "55000",
                text![
                    "pg_fence library is version ",
                    library,
                    ", but the SQL objects in this database are version ",
                    sql
                ],
            )
            .hint(text![
                "Install the library of that version, or run ALTER EXTENSION pg_fence UPDATE TO '",
                library,
                "'; then reconnect.",
            ]),
            Refused::Distributed { table } => Report::new(
                "0A000",
                text!["table \"", &table.name, "\" is distributed and cannot be protected"],
            )
            .detail(text!["The distributed engine refuses triggers on it."])
            .hint(text![
                "The fenced_* functions and fenced_guard() work on it. Grant INSERT, UPDATE and DELETE on it to the ",
                "roles that use them, and to no other.",
            ])
            .about(table),
            Refused::NoBlock { function } => {
                Report::new("25P01", text![function, " can only be used in transaction blocks"])
                    .detail(text![
                        "It lasts until the end of the transaction, and this statement is a transaction of its own."
                    ])
                    .hint(text!["Send BEGIN first, and COMMIT after the statements that it is for."])
            }
            Refused::Argument(problem) => Report::new("22023", text![problem.to_string().as_str()]),
            Refused::LeaseInBlock { function } => {
                Report::new("25001", text![function, " cannot run inside a transaction block"])
                    .detail(text!["Until COMMIT the lock is busy for everybody else, even past its ttl."])
                    .hint(text![
                        "Call it in autocommit. To use it in a block, set pg_fence.lease_in_transaction to on."
                    ])
            }
            Refused::ManyWaiters { max } => Report::new("53400", text!["too many waiters for this lock"])
                .detail(text!["pg_fence.max_waiters_per_lock is ", max, "; each waiter has a connection of its own."])
                .hint(text!["Try again later, or without wait_ms."]),
            Refused::LockTimeout => Report::new("55P03", text!["canceling statement due to lock timeout"]),
            Refused::FencesUsedUp => Report::new("54000", text!["all fences up to ", Fence::MAX, " are issued"]),
            Refused::StoredFenceAhead => {
                Report::new("55000", text!["the stored fence of this lock is too far ahead of the clock"])
                    .detail(text!["No server has issued it: a restore or a write by hand brought it."])
                    .hint(text!["Call fencelock_free(), which removes it."])
            }
            Refused::RaiseAhead { fence, max } => {
                Report::new("22023", text!["fence ", fence, " is too far ahead of the clock"])
                    .detail(text![
                        "The largest fence to which fences can be raised now is ",
                        max,
                        ": the clock and ",
                        Brought::ByRaise.ahead_in_words(),
                        "."
                    ])
                    .hint(text!["Compare the clocks of the lock servers."])
            }
            Refused::LeaseTable(problem) => Report::new("55000", text!["table \"fence_internals.leases\" ", problem])
                .hint(text!["Create the extension again."]),
            Refused::GuardTable => Report::new("55000", text!["table \"fence_internals.guards\" cannot be protected"])
                .detail(text![
                    "Only fenced_guard() and the fence_guard functions write it; a trigger refuses every other write."
                ]),
            Refused::GuardWrite => Report::new(
                "55000",
                text!["table \"fence_internals.guards\" can only be written by the functions of guards"],
            )
            .hint(text!["Call fenced_guard(), fence_guard_forget() or fence_guard_reset()."]),
            Refused::NotATrigger => Report::new("39P01", text!["this function can only be called as a trigger"])
                .hint(text!["Call fence_protect(), which makes the triggers."]),
            Refused::GuardTableAltered => {
                Report::new("55000", text!["table \"fence_internals.guards\" is not as the extension made it"])
                    .hint(text!["Create the extension again."])
            }
            Refused::EvictSuperuser { resource, pid } => {
                Report::new("42501", text!["permission denied to terminate process ", pid])
                    .detail(text![
                        "It holds guard \"",
                        resource,
                        "\", and is a superuser's: only a superuser may terminate it."
                    ])
                    .hint(text!["Have a superuser call fence_guard_evict()."])
            }
            Refused::NoGuardTable => Report::new("55000", text!["table \"fence_internals.guards\" does not exist"])
                .hint(text!["Create the extension again."]),
        }
    }
}

/// As the server refuses a prepared `SELECT *` on a table whose columns have changed. Drivers know it by its routine,
/// prepare the query again and go on.
fn of_old_analysis() -> Report {
    Report::new("0A000", text!["cached plan must not change result type"])
        .routine(c"RevalidateCachedQuery")
        .hint(text!["Prepare the query again, or run it again."])
}
