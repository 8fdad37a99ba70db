//! The edge to the server: its calls behind small types, and the guard that turns a panic into an answer.
//!
//! It knows nothing of locks. Its only state is which thread is the main one, and the context for timers. Functions
//! newer than Redis 7.0 are looked up, never assumed. Invariant: what is safe to call here cannot break the server,
//! whatever it is called with.

mod blocked;
pub(crate) mod context;
pub(crate) mod describe;
#[cfg(feature = "drill")]
pub(crate) mod drill;
pub(crate) mod event;
pub(crate) mod guard;
mod info;
mod io;
mod key;
pub(crate) mod main_thread;
mod register;
mod replicate;
mod reply;
mod scan;
pub(crate) mod string;
pub(crate) mod system;

pub(crate) use blocked::{Blocked, BlockedId, BlockedProcs};
pub(crate) use context::{Called, Ctx, TimerProc};
pub(crate) use guard::{FromServer, callback, warn};
pub(crate) use info::{InfoSection, ServerInfo, is_valkey};
pub(crate) use io::{Digest, Io, KeyOrigin};
pub(crate) use key::{Content, Hash, Key};
pub(crate) use register::{CommandProc, Position, Setting, command_callback, on_load};
pub(crate) use replicate::NotPropagated;
pub(crate) use scan::Cursor;
pub(crate) use string::{OwnedStr, Str};
