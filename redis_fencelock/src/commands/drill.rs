//! The command that makes a callback panic. Only in builds with the feature `drill`.

use crate::commands::argv::{Argv, command};
use crate::commands::reply::{CommandResult, Reply};
use crate::ffi::{Ctx, drill};

command!(on_drill, 2..=2, order);

/// `FENCELOCK._DRILL callback`: the callback of that name panics once, at its next call; `propagate` fails once.
fn order(_ctx: Ctx, argv: &Argv) -> CommandResult {
    drill::set_target(argv.at(1));
    Ok(Reply::Ok)
}
