//! The PostgreSQL half: refuses the stale holder of a lease at the row.
//!
//! This file is the table of contents: what is run when the library is loaded, and the functions that the SQL of the
//! extension declares. The rule of the protocol is in the crate `fence`; the server does the rest through ordinary
//! statements, run with the rights of the caller.

mod errors;
mod guard;
mod lease;
mod life;
mod protect;
mod row;
mod server;
mod settings;
mod stats;
mod table;
mod version;

use pgrx::prelude::*;
use std::ffi::CStr;

use crate::guard::{blockers, evict};
use crate::lease::{acquire, holder, operators, wake, watch};
use crate::protect::deletions;
use crate::protect::functions;
use crate::protect::passes;
use crate::protect::refuse;
use crate::protect::replicated;
use crate::protect::triggers;
use crate::row::claim;
use crate::row::claim_many;
use crate::row::reset;
use crate::row::update;
use crate::row::write_many;
use crate::server::call::Call;
use crate::server::session;
use crate::stats::memory;
use crate::table::batch;
use crate::table::tables;

pgrx::pg_module_magic!(name, version);

/// Called by the server when it loads the library. A cancel waits until that is done: the server would call this again,
/// and allows nothing of it twice.
#[pg_guard]
pub extern "C-unwind" fn _PG_init() {
    session::without_cancels(|| {
        settings::define();
        tables::watch_changes();
        passes::watch_transactions();
        deletions::watch_changes();
        memory::reserve();
        lease::watch_changes();
        wake::watch_transactions();
        life::loaded();
    });
}

/// A function as error texts name it.
macro_rules! called {
    ($function:ident) => {
        const {
            match CStr::from_bytes_with_nul(concat!(stringify!($function), "()\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a name has no NUL"),
            }
        }
    };
}

/// Exports functions to the server: each C symbol, with the record that says how it is called, runs one function. What
/// writes is refused on a standby, before a lock is taken that recovery does not allow.
macro_rules! sql_functions {
    ($($symbol:ident, $record:ident => $module:ident::$function:ident $(, $when:ident)?;)+) => { $(
        #[doc = concat!("How the server calls `", stringify!($symbol), "`.")]
        #[unsafe(no_mangle)]
        pub extern "C" fn $record() -> &'static pg_sys::Pg_finfo_record {
            static RECORD: pg_sys::Pg_finfo_record = pg_sys::Pg_finfo_record { api_version: 1 };
            &RECORD
        }

        #[doc = concat!("The SQL function of this symbol: see `", stringify!($module::$function), "`.")]
        ///
        /// # Safety
        ///
        /// Called by the server alone, as the extension's SQL declares it.
        #[pg_guard]
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $symbol(info: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
            // SAFETY: as the server promises of every call.
            let call = unsafe { Call::new(info) };
            let answer = version::check().and_then(|()| {
                $( session::$when(called!($function)); )?
                $module::$function(&call)
            });
            match answer {
                Ok(reply) => call.answer(reply),
                Err(refused) => refused.raise(),
            }
        }
    )+ };
}

sql_functions! {
    pg_fence_claim, pg_finfo_pg_fence_claim => claim::fenced_claim, refuse_on_standby;
    pg_fence_claim_or_insert, pg_finfo_pg_fence_claim_or_insert => claim::fenced_claim_or_insert, refuse_on_standby;
    pg_fence_claim_json, pg_finfo_pg_fence_claim_json => claim::fenced_claim_json, refuse_on_standby;
    pg_fence_claim_many, pg_finfo_pg_fence_claim_many => claim_many::fenced_claim_many, refuse_on_standby;
    pg_fence_update, pg_finfo_pg_fence_update => update::fenced_update, refuse_on_standby;
    pg_fence_update_returning, pg_finfo_pg_fence_update_returning => update::fenced_update_returning, refuse_on_standby;
    pg_fence_write, pg_finfo_pg_fence_write => update::fenced_write, refuse_on_standby;
    pg_fence_upsert, pg_finfo_pg_fence_upsert => update::fenced_upsert, refuse_on_standby;
    pg_fence_delete, pg_finfo_pg_fence_delete => update::fenced_delete, refuse_on_standby;
    pg_fence_update_many, pg_finfo_pg_fence_update_many => write_many::fenced_update_many, refuse_on_standby;
    pg_fence_write_many, pg_finfo_pg_fence_write_many => write_many::fenced_write_many, refuse_on_standby;
    pg_fence_delete_many, pg_finfo_pg_fence_delete_many => write_many::fenced_delete_many, refuse_on_standby;
    pg_fence_reset, pg_finfo_pg_fence_reset => reset::fence_reset, refuse_on_standby;
    pg_fence_guard, pg_finfo_pg_fence_guard => guard::fenced_guard, refuse_on_standby;
    pg_fence_guard_forget, pg_finfo_pg_fence_guard_forget => guard::fence_guard_forget, refuse_on_standby;
    pg_fence_guard_evict, pg_finfo_pg_fence_guard_evict => evict::fence_guard_evict, refuse_on_standby;
    pg_fence_guard_holders, pg_finfo_pg_fence_guard_holders => blockers::guard_holders;
    pg_fence_guard_reset, pg_finfo_pg_fence_guard_reset => guard::fence_guard_reset, refuse_on_standby;
    pg_fence_lease_acquire, pg_finfo_pg_fence_lease_acquire => acquire::fencelock_acquire, refuse_on_standby;
    pg_fence_lease_wait, pg_finfo_pg_fence_lease_wait => acquire::fencelock_wait, refuse_on_standby;
    pg_fence_lease_extend, pg_finfo_pg_fence_lease_extend => holder::fencelock_extend, refuse_on_standby;
    pg_fence_lease_release, pg_finfo_pg_fence_lease_release => holder::fencelock_release, refuse_on_standby;
    pg_fence_lease_check, pg_finfo_pg_fence_lease_check => watch::fencelock_check;
    pg_fence_lease_inspect, pg_finfo_pg_fence_lease_inspect => watch::fencelock_inspect;
    pg_fence_leases, pg_finfo_pg_fence_leases => watch::leases;
    pg_fence_lease_raise, pg_finfo_pg_fence_lease_raise => operators::fencelock_raise, refuse_on_standby;
    pg_fence_lease_free, pg_finfo_pg_fence_lease_free => operators::fencelock_free, refuse_on_standby;
    pg_fence_lease_forget, pg_finfo_pg_fence_lease_forget => operators::fencelock_forget, refuse_on_standby;
    pg_fence_protect, pg_finfo_pg_fence_protect => triggers::fence_protect, refuse_on_standby;
    pg_fence_unprotect, pg_finfo_pg_fence_unprotect => triggers::fence_unprotect, refuse_on_standby;
    pg_fence_use, pg_finfo_pg_fence_use => functions::fence_use;
    pg_fence_refuses_update, pg_finfo_pg_fence_refuses_update => functions::refuses_update;
    pg_fence_refuses_delete, pg_finfo_pg_fence_refuses_delete => functions::refuses_delete;
    pg_fence_refuses_insert, pg_finfo_pg_fence_refuses_insert => functions::refuses_insert;
    pg_fence_refuses_unfenced_insert, pg_finfo_pg_fence_refuses_unfenced_insert => functions::refuses_unfenced_insert;
    pg_fence_has_key, pg_finfo_pg_fence_has_key => deletions::has_key;
    pg_fence_changes_key, pg_finfo_pg_fence_changes_key => deletions::changes_key;
    pg_fence_remember, pg_finfo_pg_fence_remember => deletions::remember;
    pg_fence_forget_deletions, pg_finfo_pg_fence_forget_deletions => deletions::fence_forget_deletions, refuse_on_standby;
    pg_fence_trigger_inserts, pg_finfo_pg_fence_trigger_inserts => refuse::trigger_inserts;
    pg_fence_trigger_deletions, pg_finfo_pg_fence_trigger_deletions => deletions::trigger_deletions;
    pg_fence_life, pg_finfo_pg_fence_life => life::fence_life, refuse_on_standby;
    pg_fence_new_life, pg_finfo_pg_fence_new_life => life::fence_new_life, refuse_on_standby;
    pg_fence_given, pg_finfo_pg_fence_given => batch::given;
    pg_fence_in_life, pg_finfo_pg_fence_in_life => life::in_life;
    pg_fence_refuse, pg_finfo_pg_fence_refuse => refuse::refuse;
    pg_fence_keep_newer, pg_finfo_pg_fence_keep_newer => replicated::keep_newer;
    pg_fence_refuse_guards, pg_finfo_pg_fence_refuse_guards => guard::refuse_guards;
    pg_fence_trigger_column, pg_finfo_pg_fence_trigger_column => refuse::trigger_column;
    pg_fence_trigger_owner, pg_finfo_pg_fence_trigger_owner => refuse::trigger_owner;
    pg_fence_stat, pg_finfo_pg_fence_stat => stats::stat;
    pg_fence_stat_reset, pg_finfo_pg_fence_stat_reset => stats::pg_stat_fence_reset;
}
