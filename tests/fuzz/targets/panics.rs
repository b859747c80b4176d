//! Where the last panic of this thread came from: a crate of others may panic where we must not.

use std::cell::RefCell;
use std::panic;
use std::sync::Once;

thread_local! { static LAST: RefCell<String> = const { RefCell::new(String::new()) } }

/// Has the source file of each panic kept. It is printed as always.
pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let print = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            let file = panic.location().map_or_else(String::new, |place| place.file().to_owned());
            LAST.with_borrow_mut(|last| *last = file);
            print(panic);
        }));
    });
}

/// Returns whether the last panic of this thread came from a source file with this in its path.
pub(super) fn is_of_crate(path: &str) -> bool {
    LAST.with_borrow(|last| last.contains(path))
}
