//! Work that may panic: a panic becomes an error with its message, so that one row cannot end a sweep.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use anyhow::anyhow;

thread_local! {
    /// The panic message of the attempt in progress on this thread; `None` outside of one.
    static MESSAGE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs `work`; a panic is an error that holds its message, and is not printed.
pub(crate) fn attempt<T>(work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let inside = MESSAGE.with_borrow_mut(|message| {
                if let Some(message) = message {
                    let text = info.payload_as_str().unwrap_or("a panic without words");
                    *message = text.to_owned();
                    return true;
                }
                false
            });
            if !inside {
                previous(info);
            }
        }));
    });
    MESSAGE.set(Some(String::new()));
    let result = catch_unwind(AssertUnwindSafe(work));
    let message = MESSAGE.take().unwrap_or_default();
    result.unwrap_or_else(|_| Err(anyhow!("panicked: {message}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_with_its_message() {
        let side = 3;
        let error = attempt::<()>(|| panic!("a side of {side}")).unwrap_err();
        assert_eq!(error.to_string(), "panicked: a side of 3");
        assert_eq!(attempt(|| Ok(side)).unwrap(), 3);
        assert_eq!(attempt::<()>(|| Err(anyhow!("no"))).unwrap_err().to_string(), "no");
    }
}
