//! A number that changes with the source of the kernels.
//!
//! CubeCL keeps compiled kernels, on disk too where a `cubecl.toml` says so, and finds them again by type and compile-time arguments,
//! not by code. A program with other kernels, such as that of an upgraded crate, would run what an earlier one has compiled. So each
//! kernel has this number among its arguments.

/// Name and text of the files that kernels are written in, and of those that say where in memory things lie.
const FILES: [(&str, &str); 10] = [
    ("depthwise.rs", include_str!("depthwise.rs")),
    ("filter_gradient.rs", include_str!("filter_gradient.rs")),
    ("haar.rs", include_str!("haar.rs")),
    ("layout.rs", include_str!("layout.rs")),
    ("low_pass.rs", include_str!("low_pass.rs")),
    ("operator.rs", include_str!("operator.rs")),
    ("problem.rs", include_str!("problem.rs")),
    ("reduction.rs", include_str!("reduction.rs")),
    ("shared.rs", include_str!("shared.rs")),
    ("window.rs", include_str!("window.rs")),
];

/// FNV-1a of all [`FILES`].
pub(crate) const SOURCE: u64 = {
    let mut hash = 0xcbf2_9ce4_8422_2325;
    let mut file = 0;
    while file < FILES.len() {
        hash = fnv(hash, FILES[file].1);
        file += 1;
    }
    hash
};

/// FNV-1a of `text`, from the hash of what comes before it.
const fn fnv(mut hash: u64, text: &str) -> u64 {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u64).wrapping_mul(0x0100_0000_01b3);
        at += 1;
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_hashes() {
        // From the authors' list of test vectors.
        let offset = 0xcbf2_9ce4_8422_2325;
        assert_eq!(fnv(offset, ""), offset);
        assert_eq!(fnv(offset, "a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv(fnv(offset, "foo"), "bar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn every_file_with_kernels_counts() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut found = 0;
        for file in std::fs::read_dir(folder).unwrap() {
            let path = file.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            if text.lines().any(|line| line.starts_with("#[cube")) {
                let name = path.file_name().unwrap().to_str().unwrap();
                assert!(FILES.contains(&(name, &text)), "{name}");
                found += 1;
            }
        }
        assert!(found >= 8, "{found} files");
    }
}
