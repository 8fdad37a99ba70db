//! What a statement does to a row, what it answers, and where it has its values.

use fence::resource::Step;

/// What is done to the row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verb {
    /// Read the stored fence.
    Read,
    /// Read the stored fence where nobody owns it.
    ReadUnowned,
    /// Read the stored fence and lock the row.
    Lock,
    /// Stamp the fence.
    Claim,
    /// Set columns under the fence's claim.
    Update,
    /// Stamp the fence and set columns.
    Write,
    /// Delete the row under the fence's claim.
    Delete,
    /// Insert the row, stamped, unless one with its key is there.
    Insert,
    /// Set the fence to whatever is given.
    Reset,
    /// Read the fence that a deletion is remembered with, as it is now, whatever the transaction's snapshot reads.
    Recall,
    /// Keep the fence of a deletion, or the newer one that is there.
    Remember,
}

/// What a statement answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    /// The fence, where the statement answers it, and no row.
    Fence,
    /// The row's fields, one by one. What is made of them is made outside of the statement: a function in it would have
    /// to be immutable where the statement runs on another server, as it does on a distributed table.
    Row,
}

/// Where a statement has its values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    /// In its parameters: it is a change of one row.
    Parameters,
    /// In the rows of `given()`: it is a change of many.
    Given,
    /// The same, but one patch for all is in its parameters.
    GivenKeys,
}

/// What a statement sees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reads {
    /// What the transaction's isolation level shows it.
    ByLevel,
    /// What is committed now, whatever the level.
    Latest,
}

impl Verb {
    /// What its statement sees.
    pub(crate) fn reads(self) -> Reads {
        if self == Verb::Recall { Reads::Latest } else { Reads::ByLevel }
    }

    /// The step of the protocol that this is; none for what asks no fence.
    pub(crate) fn step(self) -> Option<Step> {
        match self {
            Verb::Read
            | Verb::ReadUnowned
            | Verb::Lock
            | Verb::Insert
            | Verb::Reset
            | Verb::Recall
            | Verb::Remember => None,
            Verb::Claim => Some(Step::Claim),
            Verb::Update | Verb::Delete => Some(Step::Update),
            Verb::Write => Some(Step::Write),
        }
    }

    /// The SQL command, as policies and triggers name it.
    pub(crate) fn command(self) -> &'static str {
        match self {
            Verb::Read | Verb::ReadUnowned | Verb::Lock | Verb::Recall => "SELECT",
            Verb::Claim | Verb::Update | Verb::Write | Verb::Reset => "UPDATE",
            Verb::Delete => "DELETE",
            Verb::Insert | Verb::Remember => "INSERT",
        }
    }

    /// Whether the fence is a parameter.
    pub(crate) fn takes_fence(self) -> bool {
        !matches!(self, Verb::Read | Verb::ReadUnowned | Verb::Lock | Verb::Recall)
    }
}
