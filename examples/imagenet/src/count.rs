//! Numbers of things in messages.

/// `count(1, "image", "images")` is "1 image", with another number "2 images".
pub fn count(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_singular() {
        assert_eq!([0, 1, 2].map(|n| count(n, "batch", "batches")), ["0 batches", "1 batch", "2 batches"]);
    }
}
