//! The arguments of a command, and the way from the server's call to the reply.
//!
//! Invariant: no reply is written before the work is done, so that a panic can still be answered by an error.

use std::cell::OnceCell;
use std::ffi::c_int;
use std::ops::RangeInclusive;

use crate::commands::reply::CommandResult;
use crate::ffi::{Ctx, Str};

/// The arguments of a command, with its name at 0 and the key at 1.
pub(crate) struct Argv<'a> {
    strings: &'a [Str<'a>],
    /// The bytes of all, once somebody has asked for more than one of them.
    few: OnceCell<[&'a [u8]; FEW]>,
    many: OnceCell<Vec<&'a [u8]>>,
}

/// Arguments that are kept without an allocation: all of every command but a long WRITE.
const FEW: usize = 16;

impl<'a> Argv<'a> {
    pub(crate) fn of(strings: &'a [Str<'a>]) -> Argv<'a> {
        Argv { strings, few: OnceCell::new(), many: OnceCell::new() }
    }

    /// The key, of a command whose arity promises one.
    pub(crate) fn key(&self) -> Str<'a> {
        self.strings[1]
    }

    /// The argument at a position that the command's arity promises.
    pub(crate) fn at(&self, position: usize) -> &'a [u8] {
        self.strings[position].bytes()
    }

    pub(crate) fn from(&self, position: usize) -> &[&'a [u8]] {
        if self.strings.len() <= position { &[] } else { &self.all()[position..] }
    }

    pub(crate) fn strings_from(&self, position: usize) -> &'a [Str<'a>] {
        self.strings.get(position..).unwrap_or_default()
    }

    /// The first arguments after the name. What a later version has behind them is ignored.
    pub(crate) fn first<const N: usize>(&self) -> Option<[Str<'a>; N]> {
        self.strings.get(1..=N)?.try_into().ok()
    }

    fn all(&self) -> &[&'a [u8]] {
        let bytes = || self.strings.iter().map(|string| string.bytes());
        if self.strings.len() > FEW {
            return self.many.get_or_init(|| bytes().collect());
        }
        let few = self.few.get_or_init(|| {
            let mut few: [&[u8]; FEW] = [&[]; FEW];
            few.iter_mut().zip(bytes()).for_each(|(cell, argument)| *cell = argument);
            few
        });
        &few[..self.strings.len()]
    }
}

/// What a command does: the error is a reply as well.
pub(crate) type CommandFn = fn(Ctx, &Argv) -> CommandResult;

/// Runs a command and sends its reply.
pub(crate) fn run(ctx: Ctx, strings: &[Str], arity: RangeInclusive<usize>, command: CommandFn) -> c_int {
    if !arity.contains(&strings.len()) {
        return ctx.wrong_arity();
    }
    command(ctx, &Argv::of(strings)).unwrap_or_else(|error| error).send(ctx)
}

/// Defines the function that the server calls for a command.
macro_rules! command {
    ($name:ident, $arity:expr, $command:path) => {
        $crate::ffi::command_callback!($name, |ctx, strings| $crate::commands::argv::run(
            ctx, strings, $arity, $command
        ));
    };
}
pub(crate) use command;

pub(crate) const ANY: usize = usize::MAX;
