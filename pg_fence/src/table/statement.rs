//! The SQL of one change of one row, or of the same change of many rows.
//!
//! Every name is quoted and qualified, every operator and type is the catalog's own, so neither the search path nor
//! temporary objects can change what a statement means. Every function in it is immutable, but the one that asks for the life
//! of the server, which is not asked of a distributed table. The comparison of fences and owners follows from the rule in
//! `fence`. Parameters: the key's values, then the fence, the owner if the caller says one, and the patch's values. A change
//! of many rows has them in the rows of `given()` (see `batch`), one for each, and as parameters only what serves all: the
//! owner, and the values of a patch.

use crate::server::catalog;
use crate::server::operators;
use crate::server::types;
use crate::table::batch;
use crate::table::fit::Fit;
use crate::table::owner::Owner;
use crate::table::relation::{Column, Table};
use crate::table::verb::{Answer, Source, Verb};
use fence::resource::Accepts;
use pg_forms::{Identifier, Parameter, joined, text};

/// A statement on a table.
#[derive(Clone, Copy)]
pub(crate) struct Statement<'a> {
    pub(crate) table: &'a Table,
    pub(crate) fence: &'a Column,
    /// Whose the fence is; `None` where nobody keeps it.
    pub(crate) owner: Option<Owner<'a>>,
    /// How the key is compared.
    pub(crate) fits: &'a [Fit],
    pub(crate) verb: Verb,
    pub(crate) answer: Answer,
    pub(crate) patch: &'a [&'a Column],
    pub(crate) source: Source,
}

/// What a write answers in place of the fence where another owner has come to be stored. It is no fence.
pub(crate) const OWNER_CHANGED: i64 = i64::MIN;
/// The name of the rows of `given()`; a table's begins otherwise.
const GIVEN: &str = "given";

impl Statement<'_> {
    /// The text of the statement.
    pub(crate) fn sql(&self) -> Vec<u8> {
        let only = if self.table.is_partitioned { "" } else { "ONLY " };
        let target = text![only, self.table.qualified_name(), " AS ", Identifier(&self.table.alias)];
        let (found, answered) = (self.condition(), self.answered());
        let returning = if answered.is_empty() { Vec::new() } else { text![" RETURNING ", &answered[..]] };
        let given = |word: &str| if self.is_of_many() { text![word, self.given()] } else { Vec::new() };
        match self.verb {
            Verb::Read | Verb::ReadUnowned | Verb::Recall => {
                text!["SELECT ", answered, " FROM ", target, given(", "), " WHERE ", found]
            }
            Verb::Lock => text!["SELECT ", answered, " FROM ", target, " WHERE ", found, " FOR NO KEY UPDATE"],
            Verb::Remember => self.remembering(),
            Verb::Delete => text!["DELETE FROM ", target, given(" USING "), " WHERE ", found, returning],
            Verb::Insert => text!["INSERT INTO ", self.inserted(), returning],
            Verb::Claim | Verb::Update | Verb::Write | Verb::Reset => {
                text!["UPDATE ", target, " SET ", self.assignments(), given(" FROM "), " WHERE ", found, returning]
            }
        }
    }

    /// Whether it changes or reads many rows.
    pub(crate) fn is_of_many(&self) -> bool {
        self.source != Source::Parameters
    }

    /// Whether a read answers if the version is of this life, for what relies on a claim.
    pub(crate) fn answers_life(&self) -> bool {
        self.is_of_many() && self.verb == Verb::Read && self.table.has_writers
    }

    /// The rows of `given()`, with the names and the types of their fields.
    fn given(&self) -> Vec<u8> {
        let function = text![Identifier(catalog::INTERNALS), ".", Identifier(batch::FUNCTION), "()"];
        let keys = self.fits.iter().enumerate().map(|(n, fit)| text!["k", n + 1, " ", types::sql_name(fit.value_type)]);
        let patch = if self.source == Source::Given { self.patch } else { &[] };
        let patch =
            patch.iter().enumerate().map(|(n, column)| text!["v", n + 1, " ", types::sql_name(column.type_oid)]);
        let numbers = ["n", "f"].into_iter().map(|name| text![name, " pg_catalog.int8"]);
        text![function, " AS ", GIVEN, "(", joined(numbers.chain(keys).chain(patch), ", "), ")"]
    }

    /// Whether it answers the fence as it is stored afterwards, before the row. A write does not need to where nothing
    /// can have changed it on the way. An INSERT answers null for a row with another key, too.
    pub(crate) fn answers_fence(&self) -> bool {
        match self.verb {
            Verb::Read | Verb::ReadUnowned | Verb::Lock | Verb::Insert | Verb::Reset | Verb::Recall => true,
            Verb::Remember => false,
            Verb::Claim | Verb::Update | Verb::Write | Verb::Delete => self.table.can_change_writes,
        }
    }

    /// Whether it answers the owner, after the fence.
    pub(crate) fn answers_owner(&self) -> bool {
        self.verb == Verb::Read && self.owner.is_some()
    }

    /// Whether the owner is a parameter.
    pub(crate) fn takes_owner(&self) -> bool {
        let may_take = !matches!(self.verb, Verb::Read | Verb::ReadUnowned | Verb::Lock | Verb::Reset);
        may_take && self.owner.is_some_and(|owner| owner.given.is_some())
    }

    /// The same statement with another verb and without a patch, answering no row.
    pub(crate) fn plain(self, verb: Verb) -> Self {
        Statement { verb, answer: Answer::Fence, patch: &[], ..self }
    }

    /// The value of a column of the key.
    fn key_value(&self, n: usize) -> Vec<u8> {
        if self.is_of_many() { text![GIVEN, ".k", n + 1] } else { text![Parameter(n + 1)] }
    }

    fn fence_value(&self) -> Vec<u8> {
        if self.is_of_many() { text![GIVEN, ".f"] } else { text![Parameter(self.fits.len() + 1)] }
    }

    /// The value of a column of the patch.
    fn patch_value(&self, n: usize) -> Vec<u8> {
        match self.source {
            Source::Parameters | Source::GivenKeys => text![Parameter(self.first_of_patch() + n)],
            Source::Given => text![GIVEN, ".v", n + 1],
        }
    }

    /// The owner, where the caller says one.
    fn owner_value(&self) -> Vec<u8> {
        text![Parameter(self.first_of_all())]
    }

    /// The number of the first parameter that a change of many rows has, too.
    fn first_of_all(&self) -> usize {
        if self.is_of_many() { 1 } else { self.fits.len() + 2 }
    }

    /// The number of the patch's first parameter.
    fn first_of_patch(&self) -> usize {
        self.first_of_all() + usize::from(self.takes_owner())
    }

    fn column(&self, column: &Column) -> Vec<u8> {
        text![Identifier(&self.table.alias), ".", Identifier(&column.name)]
    }

    /// The key is the caller's.
    fn has_key(&self) -> Vec<u8> {
        let keys = self.table.key.iter().zip(self.fits).enumerate().map(|(n, (key, fit))| {
            let column = self.table.key_column(key);
            operators::operator_clause(
                self.column(column),
                column.type_oid,
                fit.operator,
                self.key_value(n),
                fit.value_type,
            )
        });
        joined(keys, " AND ")
    }

    /// The key is the caller's, and the stored fence lets the step through.
    fn condition(&self) -> Vec<u8> {
        let keys = self.has_key();
        let Some(step) = self.verb.step() else {
            let unowned = self.owner.filter(|_| self.verb == Verb::ReadUnowned);
            let is_unowned = unowned.map_or_else(Vec::new, |owner| text![" AND ", self.is_owned(owner)]);
            return text![keys, is_unowned];
        };
        let (stored, fence) = (self.column(self.fence), self.fence_value());
        let fence = &fence[..];
        let in_life = self.in_life();
        let owned = self.owner.map_or_else(Vec::new, |owner| text![" AND ", self.is_owned(owner)]);
        match step.accepts() {
            // Not as an equality: the planner could take an index of the fences for the search then, of which many rows
            // have the same.
            Accepts::Exactly if self.is_of_many() => {
                let (least, most) = (" OPERATOR(pg_catalog.>=) ", " OPERATOR(pg_catalog.<=) ");
                text![keys, " AND ", &stored[..], least, fence, " AND ", &stored[..], most, fence, owned, in_life]
            }
            Accepts::Exactly => text![keys, " AND ", stored, " OPERATOR(pg_catalog.=) ", fence, owned, in_life],
            // A stamp that is newer relies on no claim, and replaces the owner.
            Accepts::AtMost if !in_life.is_empty() || !owned.is_empty() => {
                let newer = match self.fence.is_never_null {
                    true => text![&stored[..], " OPERATOR(pg_catalog.<) ", fence],
                    false => text![&stored[..], " OPERATOR(pg_catalog.<) ", fence, " OR ", &stored[..], " IS NULL"],
                };
                text![keys, " AND (", newer, " OR ", stored, " OPERATOR(pg_catalog.=) ", fence, owned, in_life, ")"]
            }
            Accepts::AtMost if self.fence.is_never_null => {
                text![keys, " AND ", stored, " OPERATOR(pg_catalog.<=) ", fence]
            }
            Accepts::AtMost => {
                text![keys, " AND (", &stored[..], " OPERATOR(pg_catalog.<=) ", fence, " OR ", stored, " IS NULL)"]
            }
        }
    }

    /// The condition that the version was written in this life of the server, for what relies on a claim.
    fn in_life(&self) -> Vec<u8> {
        match self.verb {
            Verb::Update | Verb::Delete | Verb::Write if self.table.has_writers => {
                let internals = Identifier(catalog::INTERNALS);
                text![" AND ", internals, ".in_life(", Identifier(&self.table.alias), ".xmin)"]
            }
            _ => Vec::new(),
        }
    }

    /// What an INSERT has between its first words and RETURNING. The primary key alone is asked whether the row is there:
    /// what violates another constraint is an error. The constraint has the name of its index.
    fn inserted(&self) -> Vec<u8> {
        let key = self.table.key.iter().map(|key| self.table.key_column(key));
        let owner = self.owner.filter(|_| self.takes_owner()).map(|owner| owner.column);
        let columns = key.chain([self.fence]).chain(owner).chain(self.patch.iter().copied());
        let names = columns.map(|column| text![Identifier(&column.name)]);
        let values = (1..self.first_of_patch() + self.patch.len()).map(|n| text![Parameter(n)]);
        // A default must not make it somebody's.
        let nobody = self.owner.filter(|owner| owner.given.is_none());
        let names = names.chain(nobody.map(|owner| text![Identifier(&owner.column.name)]));
        let values = values.chain(nobody.map(|owner| text![owner.nobody()]));
        text![
            self.table.qualified_name(),
            " AS ",
            Identifier(&self.table.alias),
            " (",
            joined(names, ", "),
            ") VALUES (",
            joined(values, ", "),
            ") ON CONFLICT ON CONSTRAINT ",
            Identifier(&self.table.key_index_name),
            " DO NOTHING",
        ]
    }

    /// The condition that a fence with this number is the caller's: it has his owner, or nobody's.
    fn is_owned(&self, owner: Owner) -> Vec<u8> {
        let is_empty = text![self.owner_column(owner), " OPERATOR(pg_catalog.=) ''::pg_catalog.text"];
        let nobodys = match owner.column.is_never_null {
            true => is_empty,
            false => text![self.column(owner.column), " IS NULL OR ", is_empty],
        };
        match self.takes_owner() {
            true => text!["(", self.has_owner(owner), " OR ", nobodys, ")"],
            false => text!["(", nobodys, ")"],
        }
    }

    fn has_owner(&self, owner: Owner) -> Vec<u8> {
        text![self.owner_column(owner), " OPERATOR(pg_catalog.=) ", self.owner_value()]
    }

    /// The stored owner, to be compared by its bytes.
    fn owner_column(&self, owner: Owner) -> Vec<u8> {
        text!["(", self.column(owner.column), "::pg_catalog.text COLLATE pg_catalog.\"C\")"]
    }

    /// The fence as it is stored afterwards, where the owner is that of the call.
    fn kept_fence(&self) -> Vec<u8> {
        let fence = text![self.column(self.fence), "::pg_catalog.int8"];
        let is_kept = match (self.owner, self.verb) {
            (None, _) | (_, Verb::Read | Verb::ReadUnowned | Verb::Lock) => return fence,
            (Some(owner), Verb::Claim | Verb::Write | Verb::Insert) if self.takes_owner() => self.has_owner(owner),
            (Some(owner), _) => self.is_owned(owner),
        };
        text!["CASE WHEN ", is_kept, " THEN ", fence, " ELSE '", OWNER_CHANGED, "'::pg_catalog.int8 END"]
    }

    fn assignments(&self) -> Vec<u8> {
        let stamp = match self.verb {
            Verb::Update => None,
            _ => Some(text![Identifier(&self.fence.name), " = ", self.fence_value()]),
        };
        let owner = self.owner.filter(|_| stamp.is_some()).map(|owner| match self.takes_owner() {
            true => text![Identifier(&owner.column.name), " = ", self.owner_value()],
            false => text![Identifier(&owner.column.name), " = ", owner.nobody()],
        });
        let stamp = stamp.into_iter().chain(owner);
        let patch = self
            .patch
            .iter()
            .enumerate()
            .map(|(n, column)| text![Identifier(&column.name), " = ", self.patch_value(n)]);
        joined(stamp.chain(patch), ", ")
    }

    /// A row of the table of the deletions, which has the key's columns, the fence, and when it was.
    fn remembering(&self) -> Vec<u8> {
        let name = |column: &Column| text![Identifier(&column.name)];
        let keys = || self.table.key.iter().map(|key| name(self.table.key_column(key)));
        let is_time = |column: &&Column| !column.is_key && column.number != self.fence.number;
        let times = self.table.columns.iter().filter(is_time);
        let fence = name(self.fence);
        let newer = text!["GREATEST(", self.column(self.fence), ", EXCLUDED.", &fence[..], ")"];
        let set = [text![&fence[..], " = ", newer]].into_iter();
        let set = set.chain(times.map(|time| text![name(time), " = DEFAULT"]));
        text![
            "INSERT INTO ",
            self.table.qualified_name(),
            " AS ",
            Identifier(&self.table.alias),
            " (",
            joined(keys().chain([fence.clone()]), ", "),
            ") VALUES (",
            joined((1..=self.table.key.len() + 1).map(Parameter), ", "),
            ") ON CONFLICT (",
            joined(keys(), ", "),
            ") DO UPDATE SET ",
            joined(set, ", "),
        ]
    }

    fn answered(&self) -> Vec<u8> {
        let row = match self.answer {
            Answer::Fence => None,
            Answer::Row => Some(joined(self.table.columns.iter().map(|column| self.column(column)), ", ")),
        };
        let fence = self.answers_fence().then(|| match self.verb {
            // A trigger can have changed the key as well: that row has no answer.
            Verb::Insert => text!["CASE WHEN ", self.has_key(), " THEN ", self.kept_fence(), " END"],
            _ => self.kept_fence(),
        });
        let owner = self.owner.filter(|_| self.answers_owner());
        let owner = owner.map(|owner| text![self.column(owner.column), "::pg_catalog.text"]);
        let number = self.is_of_many().then(|| text![GIVEN, ".n"]);
        let life = self
            .answers_life()
            .then(|| text![Identifier(catalog::INTERNALS), ".in_life(", Identifier(&self.table.alias), ".xmin)"]);
        joined(number.into_iter().chain(fence).chain(owner).chain(life).chain(row), ", ")
    }
}
