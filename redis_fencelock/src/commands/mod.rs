//! The commands: their arguments, what they do, and their replies.

pub(crate) mod argv;
pub(crate) mod docs;
#[cfg(feature = "drill")]
pub(crate) mod drill;
pub(crate) mod info;
pub(crate) mod internal;
pub(crate) mod lock;
pub(crate) mod reply;
pub(crate) mod resource;
