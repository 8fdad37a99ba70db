//! A code word for every refusal, which clients find in the error's field CONSTRAINT NAME.
//!
//! An SQLSTATE says what to do; several refusals share one. Invariant: no two refusals have the same word, and a word
//! stays once it is released.

use crate::errors::{
    ColumnProblem, DeletionsProblem, FenceProblem, KeyProblem, OwnerProblem, PatchProblem, Refused, UnfencedWrite,
};
use fence::lock::args::BadArgument;
use std::ffi::CStr;

impl Refused {
    /// Its code word.
    pub(crate) fn code(&self) -> &'static CStr {
        match self {
            Refused::NullArgument(_) => c"null_argument",
            Refused::Fence(problem) | Refused::ChosenFence { problem, .. } => problem.code(),
            Refused::NotARowType { .. } => c"not_a_row_type",
            Refused::Altered { .. } => c"table_altered",
            Refused::NoRelation(_) => c"no_such_table",
            Refused::NoType(_) => c"no_such_type",
            Refused::NotATable { .. } => c"not_a_table",
            Refused::PrimaryKey { .. } => c"primary_key_unusable",
            Refused::NoFenceColumn { .. } => c"no_fence_column",
            Refused::FenceColumnType { .. } => c"fence_column_type",
            Refused::FenceColumnUse { .. } => c"fence_column_unusable",
            Refused::OwnerColumn { problem, .. } => problem.code(),
            Refused::Key { problem, .. } => problem.code(),
            Refused::Keys { .. } => c"keys_not_an_array",
            Refused::Element { problem, .. } => problem.code(),
            Refused::KeyTwice { .. } => c"key_twice",
            Refused::Dimensions(_) => c"array_dimensions",
            Refused::ArrayLength { .. } => c"array_length",
            Refused::Distributed { .. } => c"distributed_table",
            Refused::Patch(problem) => problem.code(),
            Refused::PatchColumn { problem, .. } => problem.code(),
            Refused::NoRow { .. } => c"no_such_row",
            Refused::Unclaimed { .. } => c"row_unclaimed",
            Refused::Duplicate { .. } => c"fence_duplicate",
            Refused::Outlived { key: Some(_), .. } => c"claim_outlived",
            Refused::Outlived { key: None, .. } => c"plain_write_outlived",
            Refused::Blocked { .. } => c"write_blocked",
            Refused::InsertBlocked { .. } => c"insert_blocked",
            Refused::KeyChanged { .. } => c"key_changed",
            Refused::KeyGenerated { .. } => c"key_generated",
            Refused::PutBack { .. } => c"fence_put_back",
            Refused::OwnerPutBack { .. } => c"owner_put_back",
            Refused::ManyRows { .. } => c"key_not_unique",
            Refused::Server { .. } => c"server_answer",
            Refused::StaleGuard { .. } => c"guard_stale",
            Refused::DuplicateGuard { .. } => c"guard_duplicate",
            Refused::OutlivedGuard { .. } => c"guard_outlived",
            Refused::NotALife { .. } => c"not_a_life",
            Refused::NoSharedLife => c"no_shared_life",
            Refused::GuardLevel => c"guard_isolation_level",
            Refused::NoGuard { .. } => c"no_such_guard",
            Refused::ResourceLength { .. } => c"resource_name_length",
            Refused::NoGuardTable => c"no_guard_table",
            Refused::GuardTableAltered => c"guard_table_unusable",
            Refused::EvictSuperuser { .. } => c"evicted_superuser",
            Refused::GuardTable => c"guard_table_not_protectable",
            Refused::GuardWrite => c"guard_table_write",
            Refused::Unfenced { write, .. } => write.code(),
            Refused::StaleRow { .. } => c"plain_write_stale",
            Refused::UnclaimedRow { .. } => c"plain_write_unclaimed",
            Refused::DuplicateRow { .. } => c"plain_write_duplicate",
            Refused::NullableFence { .. } => c"fence_column_nullable",
            Refused::ProtectedByParent { .. } => c"protected_by_parent",
            Refused::NoSuchOption { .. } => c"option_not_supported",
            Refused::StaleInsert { .. } => c"insert_stale",
            Refused::Deletions { problem, .. } => problem.code(),
            Refused::NegativeAge { .. } => c"age_negative",
            Refused::ManyInUse { .. } => c"too_many_fences_in_use",
            Refused::Version { .. } => c"version_mismatch",
            Refused::NoBlock { .. } => c"no_transaction_block",
            Refused::Argument(BadArgument::Length { .. }) => c"argument_length",
            Refused::Argument(BadArgument::NoWait { .. }) => c"wait_zero",
            Refused::Argument(_) => c"argument_range",
            Refused::LeaseInBlock { .. } => c"lease_in_transaction_block",
            Refused::ManyWaiters { .. } => c"too_many_waiters",
            Refused::LockTimeout => c"lease_lock_timeout",
            Refused::FencesUsedUp => c"fences_used_up",
            Refused::StoredFenceAhead => c"stored_fence_ahead_of_clock",
            Refused::RaiseAhead { .. } => c"raise_ahead_of_clock",
            Refused::LeaseTable(_) => c"lease_table_unusable",
            Refused::NotATrigger => c"not_a_trigger",
        }
    }
}

impl UnfencedWrite {
    fn code(&self) -> &'static CStr {
        match self {
            UnfencedWrite::Truncate => c"truncate_unfenced",
            UnfencedWrite::NoFence(_) => c"plain_write_unfenced",
            UnfencedWrite::FenceChanged => c"plain_write_changes_fence",
            UnfencedWrite::OwnerChanged => c"plain_write_changes_owner",
            UnfencedWrite::Insert(_) => c"insert_fence_not_in_use",
            UnfencedWrite::InsertWithout => c"insert_unfenced",
            UnfencedWrite::DeletedKey { .. } => c"insert_of_deleted_key",
            UnfencedWrite::Altered(_) => c"trigger_altered",
            UnfencedWrite::MoveUnasked(_) => c"move_unchecked",
        }
    }
}

impl DeletionsProblem {
    fn code(&self) -> &'static CStr {
        match self {
            DeletionsProblem::NotRemembered => c"deletions_not_remembered",
            DeletionsProblem::Owner(_) => c"deletions_of_another_owner",
            DeletionsProblem::OfAnother(_) => c"deletions_of_another_table",
            DeletionsProblem::Columns(_) => c"deletions_of_another_key",
        }
    }
}

impl FenceProblem {
    fn code(&self) -> &'static CStr {
        match self {
            FenceProblem::Null => c"fence_null",
            FenceProblem::NotPositive(_) => c"fence_not_positive",
            FenceProblem::AboveProtocol(_) => c"fence_above_protocol",
            FenceProblem::AboveSetting { .. } => c"fence_above_setting",
            FenceProblem::AboveColumn { .. } => c"fence_above_column",
            FenceProblem::Ahead { .. } => c"fence_ahead_of_clock",
        }
    }
}

impl OwnerProblem {
    fn code(&self) -> &'static CStr {
        match self {
            OwnerProblem::Missing => c"no_owner_column",
            OwnerProblem::Type(_) => c"owner_column_type",
            OwnerProblem::Use(_) => c"owner_column_unusable",
            OwnerProblem::Room { .. } => c"owner_column_room",
        }
    }
}

impl KeyProblem {
    fn code(&self) -> &'static CStr {
        match self {
            KeyProblem::Null(_) => c"key_null",
            KeyProblem::Type { .. } => c"key_type",
            KeyProblem::Count { .. } => c"key_column_count",
            KeyProblem::Missing(_) => c"key_column_missing",
            KeyProblem::NoKeyColumn(_) => c"key_column_unknown",
            KeyProblem::NotAnObject(_) => c"key_not_an_object",
            KeyProblem::NotStorable(_) => c"key_not_storable",
        }
    }
}

impl PatchProblem {
    fn code(&self) -> &'static CStr {
        match self {
            PatchProblem::NotAnObject(_) => c"patch_not_an_object",
            PatchProblem::InitialNotAnObject(_) => c"initial_not_an_object",
            PatchProblem::NotPatches(_) => c"patches_not_an_array",
            PatchProblem::OtherColumns => c"patch_other_columns",
            PatchProblem::Empty => c"patch_empty",
            PatchProblem::NoField { .. } => c"patch_field_unknown",
            PatchProblem::Form { .. } => c"patch_value_form",
        }
    }
}

impl ColumnProblem {
    fn code(&self) -> &'static CStr {
        match self {
            ColumnProblem::Unknown => c"patch_column_unknown",
            ColumnProblem::Key => c"patch_column_key",
            ColumnProblem::Fence => c"patch_column_fence",
            ColumnProblem::Owner => c"patch_column_owner",
            ColumnProblem::Generated => c"patch_column_generated",
            ColumnProblem::Identity => c"patch_column_identity",
            ColumnProblem::InitialKey => c"initial_column_key",
            ColumnProblem::InitialFence => c"initial_column_fence",
            ColumnProblem::InitialOwner => c"initial_column_owner",
            ColumnProblem::InitialGenerated => c"initial_column_generated",
            ColumnProblem::InitialIdentity => c"initial_column_identity",
        }
    }
}
