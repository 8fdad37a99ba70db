//! Panics and failures on request, to prove what becomes of them. Only in builds with the feature `drill`.

use std::sync::Mutex;

/// The callback that is to panic at its next call.
static TARGET: Mutex<Option<String>> = Mutex::new(None);

/// Has the callback of that name panic once, at its next call; `propagate` fails once.
pub(crate) fn set_target(name: &[u8]) {
    *TARGET.lock().unwrap() = Some(String::from_utf8_lossy(name).into_owned());
}

/// Panics when `name` is the target.
pub(crate) fn panic_if_target(name: &str) {
    assert!(!take_target(name), "drill in {name}");
}

/// Whether this was the target, which it is once.
pub(crate) fn take_target(name: &str) -> bool {
    TARGET.lock().unwrap().take_if(|target| target == name).is_some()
}
